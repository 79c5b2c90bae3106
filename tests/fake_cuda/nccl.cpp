// An NCCL without a GPU, and the CUDA calls that wait for it. LD_PRELOAD puts it before the fake CUDA libraries.
//
// The ranks of a communicator meet in a file in the folder FAKE_NCCL_DIRECTORY, which all of them map. A collective
// starts when the work before it on its stream is complete, and is complete when all ranks have started one of the same
// kind and size. So ranks that disagree wait for ever, as on a GPU. No data is moved.
//
// build.sh builds it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int MAX_RANKS = 8, MAX_SPLITS = 64, RING = 4096, NOT_READY = 600;
constexpr int COLLECTIVES = MAX_RANKS * MAX_RANKS;  // the channel after those of all pairs of sender and receiver

// The file that the ranks of a communicator share. `started` counts the operations of each rank on each channel.
struct Shared {
  std::atomic<int> joined[MAX_RANKS];
  std::atomic<uint64_t> started[COLLECTIVES + 1][MAX_RANKS];
  std::atomic<uint64_t> signature[MAX_RANKS][RING];
  std::atomic<int> splits[MAX_SPLITS][MAX_RANKS];
  int color[MAX_SPLITS][MAX_RANKS], key[MAX_SPLITS][MAX_RANKS];
};

struct Communicator {
  int rank, size;
  Shared* shared;
  std::string name;
  int splits = 0;
  std::map<int, uint64_t> called;  // operations by channel
};

struct Id {
  char bytes[128];
};

// An operation is the communicator, the channel and its number there. Later ones imply earlier ones.
using Channel = std::pair<Communicator*, int>;
using Work = std::map<Channel, uint64_t>;

struct Queued {
  Channel channel;
  uint64_t number;
  Work before;
};

std::mutex lock;
std::map<void*, Work> streams, events;
std::vector<Queued> queue;

// Operations of the calling thread between ncclGroupStart and ncclGroupEnd. All of them start together.
struct Grouped {
  Channel channel;
  uint64_t number;
  void* stream;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

bool is_complete(const Channel& channel, uint64_t number) {
  const auto& [communicator, index] = channel;
  const Shared& shared = *communicator->shared;
  if (index < COLLECTIVES) {
    const int sender = index / MAX_RANKS, receiver = index % MAX_RANKS;
    return shared.started[index][sender] >= number && shared.started[index][receiver] >= number;
  }
  const uint64_t own = shared.signature[communicator->rank][number % RING];
  for (int rank = 0; rank < communicator->size; rank++)
    if (shared.started[index][rank] < number || shared.signature[rank][number % RING] != own) return false;
  return true;
}

// Forgets what is complete. Returns true if nothing is left.
bool is_complete(Work& work) {
  for (auto at = work.begin(); at != work.end();) at = is_complete(at->first, at->second) ? work.erase(at) : std::next(at);
  return work.empty();
}

void add(Work& work, const Work& more) {
  for (const auto& [channel, number] : more)
    if (work[channel] < number) work[channel] = number;
}

// Starts operations whose predecessors are complete, in the order of each channel.
void start_queued() {
  for (;;) {
    {
      std::lock_guard guard(lock);
      std::set<Channel> blocked;
      std::vector<Queued> rest;
      for (Queued& queued : queue) {
        if (!blocked.count(queued.channel) && is_complete(queued.before)) {
          queued.channel.first->shared->started[queued.channel.second][queued.channel.first->rank] = queued.number;
        } else {
          blocked.insert(queued.channel);
          rest.push_back(std::move(queued));
        }
      }
      queue.swap(rest);
    }
    usleep(200);
  }
}

void enqueue(const std::vector<Grouped>& operations) {
  static std::once_flag once;
  std::call_once(once, [] { std::thread(start_queued).detach(); });
  std::lock_guard guard(lock);
  std::map<void*, Work> before;
  for (const Grouped& operation : operations) before[operation.stream] = streams[operation.stream];
  for (const Grouped& operation : operations) {
    queue.push_back({operation.channel, operation.number, before[operation.stream]});
    add(streams[operation.stream], {{operation.channel, operation.number}});
  }
}

int call(void* handle, int channel, uint64_t signature, void* stream) {
  auto* communicator = static_cast<Communicator*>(handle);
  uint64_t number;
  {
    std::lock_guard guard(lock);
    number = ++communicator->called[channel];
    if (channel == COLLECTIVES) communicator->shared->signature[communicator->rank][number % RING] = signature;
  }
  grouped.push_back({{communicator, channel}, number, stream});
  if (depth == 0) {
    enqueue(grouped);
    grouped.clear();
  }
  return 0;
}

int collective(void* communicator, uint64_t kind, uint64_t count, int type, void* stream) {
  return call(communicator, COLLECTIVES, kind << 56 | uint64_t(type) << 48 | count, stream);
}

void wait_for_all(const std::atomic<int>* flags, int size) {
  for (int rank = 0; rank < size; rank++)
    while (!flags[rank]) usleep(500);
}

int join(void** result, int size, const char* name, int rank) {
  const char* directory = getenv("FAKE_NCCL_DIRECTORY");
  const std::string path = std::string(directory ? directory : "/dev/shm") + "/" + name;
  const int file = open(path.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return 1;
  void* shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shared == MAP_FAILED || size > MAX_RANKS) return 1;
  auto* communicator = new Communicator{rank, size, static_cast<Shared*>(shared), name, 0, {}};
  communicator->shared->joined[rank] = 1;
  wait_for_all(communicator->shared->joined, size);
  *result = communicator;
  return 0;
}

template <class Map>
int wait_until_complete(Map& map, void* key) {
  for (;; usleep(500)) {
    std::lock_guard guard(lock);
    if (is_complete(map[key])) return 0;
  }
}

}  // namespace

// --- NCCL

EXPORT int ncclGetVersion(int* version) { *version = 22809; return 0; }
EXPORT const char* ncclGetErrorString(int) { return "an error of the fake NCCL"; }
EXPORT const char* ncclGetLastError(void*) { return ""; }

EXPORT int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  uint64_t number;
  const int random = open("/dev/urandom", O_RDONLY);
  const bool is_read = read(random, &number, sizeof number) == sizeof number;
  close(random);
  snprintf(id->bytes, sizeof id->bytes, "fake-nccl-%016lx", number);
  return is_read ? 0 : 1;
}

EXPORT int ncclCommInitRank(void** result, int size, Id id, int rank) { return join(result, size, id.bytes, rank); }
EXPORT int ncclCommInitRankConfig(void** result, int size, Id id, int rank, void*) { return join(result, size, id.bytes, rank); }
EXPORT int ncclCommInitRankScalable(void** result, int size, int rank, int, Id* id, void*) { return join(result, size, id->bytes, rank); }

EXPORT int ncclCommSplit(void* handle, int color, int key, void** result, void*) {
  auto* parent = static_cast<Communicator*>(handle);
  const int index = parent->splits++ % MAX_SPLITS;
  Shared& shared = *parent->shared;
  shared.color[index][parent->rank] = color;
  shared.key[index][parent->rank] = key;
  shared.splits[index][parent->rank] = 1;
  wait_for_all(shared.splits[index], parent->size);
  *result = nullptr;
  if (color < 0) return 0;
  int size = 0, rank = 0;
  for (int other = 0; other < parent->size; other++) {
    if (shared.color[index][other] != color) continue;
    size++;
    rank += std::pair(shared.key[index][other], other) < std::pair(key, parent->rank);
  }
  const std::string name = parent->name + "-" + std::to_string(index) + "-" + std::to_string(color);
  return join(result, size, name.c_str(), rank);
}

EXPORT int ncclCommCount(void* handle, int* size) { *size = static_cast<Communicator*>(handle)->size; return 0; }
EXPORT int ncclCommUserRank(void* handle, int* rank) { *rank = static_cast<Communicator*>(handle)->rank; return 0; }
EXPORT int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }

EXPORT int ncclGroupStart() { depth++; return 0; }
EXPORT int ncclGroupEnd() {
  if (--depth == 0 && !grouped.empty()) {
    enqueue(grouped);
    grouped.clear();
  }
  return 0;
}

EXPORT int ncclAllReduce(void*, void*, size_t count, int type, int, void* communicator, void* stream) { return collective(communicator, 1, count, type, stream); }
EXPORT int ncclAllGather(void*, void*, size_t count, int type, void* communicator, void* stream) { return collective(communicator, 2, count, type, stream); }
EXPORT int ncclReduceScatter(void*, void*, size_t count, int type, int, void* communicator, void* stream) { return collective(communicator, 3, count, type, stream); }
EXPORT int ncclBroadcast(void*, void*, size_t count, int type, int, void* communicator, void* stream) { return collective(communicator, 4, count, type, stream); }
EXPORT int ncclReduce(void*, void*, size_t count, int type, int, int, void* communicator, void* stream) { return collective(communicator, 5, count, type, stream); }

EXPORT int ncclSend(void*, size_t, int, int peer, void* handle, void* stream) {
  return call(handle, static_cast<Communicator*>(handle)->rank * MAX_RANKS + peer, 0, stream);
}
EXPORT int ncclRecv(void*, size_t, int, int peer, void* handle, void* stream) {
  return call(handle, peer * MAX_RANKS + static_cast<Communicator*>(handle)->rank, 0, stream);
}

// --- CUDA

EXPORT int cudaEventRecord(void* event, void* stream) {
  std::lock_guard guard(lock);
  is_complete(streams[stream]);
  events[event] = streams[stream];
  return 0;
}
EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned) { return cudaEventRecord(event, stream); }

EXPORT int cudaEventQuery(void* event) {
  std::lock_guard guard(lock);
  return is_complete(events[event]) ? 0 : NOT_READY;
}
EXPORT int cudaStreamQuery(void* stream) {
  std::lock_guard guard(lock);
  return is_complete(streams[stream]) ? 0 : NOT_READY;
}
EXPORT int cudaEventSynchronize(void* event) { return wait_until_complete(events, event); }
EXPORT int cudaStreamSynchronize(void* stream) { return wait_until_complete(streams, stream); }

EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  std::lock_guard guard(lock);
  is_complete(events[event]);
  add(streams[stream], events[event]);
  return 0;
}

EXPORT int cudaDeviceSynchronize() {
  for (;; usleep(500)) {
    std::lock_guard guard(lock);
    bool is_idle = true;
    for (auto& [stream, work] : streams) is_idle &= is_complete(work);
    if (is_idle) return 0;
  }
}

// Pinned memory.
EXPORT int cudaHostGetDevicePointer(void** device, void* host, unsigned) { *device = host; return 0; }
