// A process with the real CUDA caching allocator of one torch release in it, driven by lines on its stdin.
//
// Compiled per release against the wheel's own c10 headers and linked with its libc10_cuda.so; runtime.cpp stands in
// for CUDA. PyTorch's own getDeviceStats() and snapshot() are printed on request: the truth that a reader from outside
// is compared with. build.sh passes TORCH=20600 for torch 2.6.0.
//
// The first line on stdout, and then one for each command, is a JSON object: {"pid": N, "devices": N} at the start,
// {"error": "…"} where a command failed, and otherwise what is said here, {} where nothing is said.
//
//   device N                      the current device
//   stream N                      allocate on stream N of the current device; 0 is its default stream: {"handle": N}
//   alloc COUNT [BYTES]           COUNT blocks, of BYTES or of random sizes between 512 bytes and 32 MiB (as many small
//                                 as large ones); {"live": blocks now held}. A block that does not fit is left out
//   free FRACTION                 frees that part of all blocks held, chosen at random: {"live": N}
//   pool ID COUNT [BYTES]         the same as alloc, into the private pool ID of the current device, as a CUDA graph does
//   release_pool ID               nothing will allocate into it any more; its memory stays until its blocks are freed
//   record_stream COUNT [BYTES]   COUNT blocks (3 MiB) that another stream uses, freed: active until events are ready
//   events ready|pending          whether the other streams have come past what they were asked (default ready)
//   oom                           asks for 32 TiB and is refused
//   empty_cache
//   reset peak|accumulated        of the current device
//   churn THREADS RATE [FILE]     THREADS threads allocate and free on the current device, RATE operations a second
//                                 each, evenly spaced (0: as fast as can be, with an empty_cache now and then); FILE
//                                 takes the journal (below) of the one thread
//   stop                          ends it; {"operations": N, "seconds": S}
//   stats                         {"devices": [{"allocated_bytes": [[current, peak, allocated, freed] x 3], …}]}
//                                 where 3 are: both, small, large
//   snapshot                      {"segments": [{"device", "address", "size", "stream", "large", "private", "expandable",
//                                 "blocks": [[size, requested, allocated, active]]}]}; requested is 0 before torch 2.0
//   fraction F                    the current device's memory that may be reserved, as a part of all
//   trace FILE                    plays the operations in FILE (below) one by one: {"states": N}
//   init                          what the first use of CUDA does; done at the start unless argv[1] is --not-initialized
//   fork                          a child that does nothing: {"child": PID}; it dies with this process
//   exec PROGRAM                  becomes another program, after answering
//   undumpable                    may only be looked at by root from now on, as after prctl(PR_SET_DUMPABLE, 0)
//   second LIBHARNESS             loads the libharness.so of another release with its own torch into this process
//   second: COMMAND               a command for that one
//   quit                          so does the end of input
//
// The journal has one record per operation: the moment after it (CLOCK_MONOTONIC, nanoseconds), a hash of all
// allocated blocks of the device (XOR over mix(address, requested); requested is 0 before torch 2.0), and the
// device's statistics as PyTorch gave them then, in the order of `Record`. Little-endian u64 throughout. The first
// record is the state before the first operation. A map and statistics read from outside at full speed must be those
// of some record around that moment.
//
// A trace's operations are lines: `a NAME BYTES STREAM POOL` allocates (pool 0 is the shared ones), `r NAME STREAM`
// lets another stream use a block, `f NAME` frees it, `e 0|1` makes events pending or ready, `c` empties the cache,
// `d POOL` destroys a pool. Beside FILE lies FILE.states then: after each operation a `State`, little-endian.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace caching = c10::cuda::CUDACachingAllocator;

extern "C" void fake_cuda_events_ready(bool ready);
extern "C" void fake_cuda_capturing(uint64_t id);

namespace {

std::string format(const char* pattern, ...) {
  char text[512];
  va_list values;
  va_start(values, pattern);
  vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// --- what is allocated -------------------------------------------------------------------------------------------

struct Held {
  void* address;
  size_t requested;
  int device;
};

std::vector<Held> held;
std::mt19937_64 dice(42);
// Before torch 2.1 a snapshot does not say which segment is whose: segments that hold one of these are private.
std::set<uint64_t> given_from_private_pools;

size_t any_size(std::mt19937_64& dice) {
  return size_t(std::pow(2.0, std::uniform_real_distribution<double>(9, 25)(dice)));
}

void* allocate(size_t size) {
  try {
    return caching::raw_alloc(size);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void hold(long count, size_t size, bool in_private_pool = false) {
  const int device = c10::cuda::current_device();
  for (long i = 0; i < count; i++) {
    const size_t requested = size ? size : any_size(dice);
    if (void* address = allocate(requested)) {
      held.push_back({address, requested, device});
      if (in_private_pool) given_from_private_pools.insert(reinterpret_cast<uint64_t>(address));
    }
  }
}

void let_go(double fraction) {
  std::shuffle(held.begin(), held.end(), dice);
  for (size_t count = held.size() * fraction; count > 0; count--) {
    caching::raw_delete(held.back().address);
    held.pop_back();
  }
}

// Gives the stream's handle.
uint64_t use_stream(int number) {
  static std::map<std::pair<int, int>, c10::cuda::CUDAStream> known;
  const auto device = c10::cuda::current_device();
  if (number == 0) {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(device));
    return 0;
  }
  auto [found, is_new] = known.try_emplace({device, number}, c10::cuda::getDefaultCUDAStream(device));
  if (is_new) found->second = c10::cuda::getStreamFromPool(false, device);
  c10::cuda::setCurrentCUDAStream(found->second);
  return reinterpret_cast<uint64_t>(found->second.stream());
}

// How allocations are led into a pool of their own has changed twice.
template <class Work>
void in_pool(unsigned long long id, const Work& work) {
  const auto device = c10::cuda::current_device();
#if TORCH < 20100
  const unsigned long long capture = 76 + id;
  caching::notifyCaptureBegin(device, capture, {id, 0});
  fake_cuda_capturing(capture);
  work();
  fake_cuda_capturing(0);
#if TORCH < 20000
  caching::notifyCaptureEnd(device, capture);
#else
  caching::notifyCaptureAboutToEnd(device, capture);
#endif
#elif TORCH < 20300
  const auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
  caching::beginAllocateStreamToPool(device, stream, {id, 0});
  work();
  caching::endAllocateStreamToPool(device, stream);
#else
  caching::beginAllocateToPool(device, {id, 0}, [](cudaStream_t) { return true; });
  work();
  caching::endAllocateToPool(device, {id, 0});
#endif
}

void hold_in_pool(unsigned long long id, long count, size_t size) {
  in_pool(id, [&] { hold(count, size, true); });
}

void release_pool(unsigned long long id) {
  const auto device = c10::cuda::current_device();
#if TORCH < 20100
  caching::notifyCaptureDestroy(device, {id, 0});
#else
  caching::releasePool(device, {id, 0});
#endif
}

void record_stream(long count, size_t size) {
  fake_cuda_events_ready(false);
  const auto other = c10::cuda::getStreamFromPool(false, c10::cuda::current_device());
  for (long i = 0; i < count; i++) {
    const c10::DataPtr block = caching::get()->allocate(size);
    caching::recordStream(block, other);
  }
}

// --- the truth ---------------------------------------------------------------------------------------------------

template <class Array>
std::string stat_array(const char* name, const Array& array) {
  std::string text = format("\"%s\": [", name);
  for (int i = 0; i < 3; i++)
    text += format("%s[%ld, %ld, %ld, %ld]", i ? ", " : "", long(array[i].current), long(array[i].peak),
                   long(array[i].allocated), long(array[i].freed));
  return text + "], ";
}

std::string stats() {
  std::string text = "{\"devices\": [";
  for (int device = 0; device < c10::cuda::device_count(); device++) {
    const auto stats = caching::getDeviceStats(device);
    text += device ? ", {" : "{";
    text += stat_array("allocation", stats.allocation);
    text += stat_array("segment", stats.segment);
    text += stat_array("active", stats.active);
    text += stat_array("inactive_split", stats.inactive_split);
    text += stat_array("allocated_bytes", stats.allocated_bytes);
    text += stat_array("reserved_bytes", stats.reserved_bytes);
    text += stat_array("active_bytes", stats.active_bytes);
    text += stat_array("inactive_split_bytes", stats.inactive_split_bytes);
#if TORCH >= 20000
    text += stat_array("requested_bytes", stats.requested_bytes);
#endif
    text += format("\"num_alloc_retries\": %ld, \"num_ooms\": %ld}", long(stats.num_alloc_retries), long(stats.num_ooms));
  }
  return text + "]}";
}

std::string snapshot() {
#if TORCH < 20000
  const auto segments = caching::snapshot();
#else
  const auto snapshot = caching::snapshot();
  const auto& segments = snapshot.segments;
#endif
  std::string text = "{\"segments\": [";
  for (const auto& segment : segments) {
    const uint64_t start = segment.address;
#if TORCH >= 20100
    const bool is_private = segment.owner_private_pool_id != decltype(segment.owner_private_pool_id){0, 0};
    const bool expandable = segment.is_expandable;
#else
    const auto given = given_from_private_pools.lower_bound(start);
    const bool is_private = given != given_from_private_pools.end() && *given < start + segment.total_size;
    const bool expandable = false;
#endif
    text += format("%s{\"device\": %d, \"address\": %lu, \"size\": %lu, \"stream\": %lu, \"large\": %s, \"private\": %s, "
                   "\"expandable\": %s, \"blocks\": [",
                   &segment == &segments.front() ? "" : ", ", int(segment.device), start, (unsigned long)segment.total_size,
                   (unsigned long)segment.stream, segment.is_large ? "true" : "false", is_private ? "true" : "false",
                   expandable ? "true" : "false");
    for (const auto& block : segment.blocks) {
#if TORCH >= 20000
      const unsigned long requested = block.requested_size;
#else
      const unsigned long requested = 0;
#endif
      text += format("%s[%lu, %lu, %s, %s]", &block == &segment.blocks.front() ? "" : ", ", (unsigned long)block.size,
                     requested, block.allocated ? "true" : "false", block.active ? "true" : "false");
    }
    text += "]}";
  }
  return text + "]}";
}

// --- churn and its journal ---------------------------------------------------------------------------------------

struct Record {
  uint64_t time = 0;
  uint64_t blocks = 0;
  int64_t allocated[2], reserved[2], active[2], inactive_split[2], requested[2], segments[2];  // current, peak
  int64_t num_alloc_retries, num_ooms;
};

uint64_t mix(const void* address, size_t requested) {
#if TORCH < 20000
  requested = 0;  // its blocks do not say
#endif
  // splitmix64 over both; only equality matters.
  uint64_t x = reinterpret_cast<uint64_t>(address) * 0x9e3779b97f4a7c15 + requested;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Record record(int device, uint64_t blocks) {
  const auto stats = caching::getDeviceStats(device);
  Record record;
  record.blocks = blocks;
  const auto take = [](int64_t (&into)[2], const auto& array) { into[0] = array[0].current, into[1] = array[0].peak; };
  take(record.allocated, stats.allocated_bytes);
  take(record.reserved, stats.reserved_bytes);
  take(record.active, stats.active_bytes);
  take(record.inactive_split, stats.inactive_split_bytes);
#if TORCH >= 20000
  take(record.requested, stats.requested_bytes);
#else
  record.requested[0] = record.requested[1] = 0;
#endif
  take(record.segments, stats.segment);
  record.num_alloc_retries = stats.num_alloc_retries;
  record.num_ooms = stats.num_ooms;
  record.time = now();
  return record;
}

struct Churn {
  std::atomic<bool> stop{false};
  std::atomic<long> operations{0};
  uint64_t started = 0;
  std::string journal_file;
  std::vector<Record> journal;
  std::vector<std::thread> threads;
} churn;

void churn_thread(int number, int device, long rate, bool with_journal) {
  c10::cuda::set_device(device);
  prctl(PR_SET_TIMERSLACK, 1);
  std::mt19937_64 dice(number + 1);
  std::vector<Held> own;
  uint64_t blocks = 0;
  if (with_journal) {
    for (const Held& one : held)
      if (one.device == device) blocks ^= mix(one.address, one.requested);
    churn.journal.push_back(record(device, blocks));
  }
  const uint64_t start = now();
  for (long operation = 1; !churn.stop; operation++) {
    if (rate) {
      // Sleeping is too coarse for short pauses.
      const uint64_t due = start + operation * 1'000'000'000 / rate;
      if (rate <= 20'000) {
        const timespec until = {time_t(due / 1'000'000'000), long(due % 1'000'000'000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
      } else {
        while (now() < due && !churn.stop) {
        }
      }
    } else if (operation % 4096 == 0) {
      caching::emptyCache();
    }
    if (own.empty() || (own.size() < 400 && (dice() & 1))) {
      const size_t requested = any_size(dice);
      if (void* address = allocate(requested)) {
        own.push_back({address, requested, device});
        blocks ^= mix(address, requested);
      }
    } else {
      std::swap(own[dice() % own.size()], own.back());
      caching::raw_delete(own.back().address);
      blocks ^= mix(own.back().address, own.back().requested);
      own.pop_back();
    }
    churn.operations++;
    if (with_journal) churn.journal.push_back(record(device, blocks));
  }
  for (const Held& one : own) caching::raw_delete(one.address);
}

void start_churn(int threads, long rate, const std::string& file) {
  churn.stop = false;
  churn.operations = 0;
  churn.started = now();
  churn.journal_file = file;
  churn.journal.clear();
  churn.journal.reserve(1 << 20);  // so that it is not moved while someone reads
  const int device = c10::cuda::current_device();
  for (int i = 0; i < threads; i++) churn.threads.emplace_back(churn_thread, i, device, rate, !file.empty());
}

std::string stop_churn() {
  const double seconds = (now() - churn.started) / 1e9;
  churn.stop = true;
  for (auto& thread : churn.threads) thread.join();
  churn.threads.clear();
  if (!churn.journal_file.empty()) {
    FILE* file = fopen(churn.journal_file.c_str(), "w");
    if (!file || fwrite(churn.journal.data(), sizeof(Record), churn.journal.size(), file) != churn.journal.size() ||
        fclose(file) != 0)
      throw std::runtime_error("cannot write the journal");
  }
  return format("{\"operations\": %ld, \"seconds\": %.3f}", churn.operations.load(), seconds);
}

// --- a trace, and the state after each of its operations ----------------------------------------------------------

struct State {
  uint64_t answer = 0;  // of an allocation: its address, 1 where it was out of memory, 2 where something else failed
  uint64_t map = 0;     // segments and blocks
  int64_t allocated[2], reserved[2], active[2], inactive_split[2], requested[2], segments[2];  // current, peak
  int64_t num_alloc_retries, num_ooms;
};

// The order of segments and blocks is part of it: by address.
uint64_t map_hash(int device) {
  uint64_t hash = 0;
  const auto take = [&](uint64_t word) {
    uint64_t x = (hash ^ word) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    hash = x ^ (x >> 31);
  };
#if TORCH < 20000
  auto segments = caching::snapshot();
#else
  const auto snapshot = caching::snapshot();
  const auto& segments = snapshot.segments;
#endif
  for (const auto& segment : segments) {
    if (segment.device != device) continue;
    take(segment.address), take(segment.total_size), take(reinterpret_cast<uint64_t>(segment.stream));
#if TORCH >= 20100
    take(segment.is_expandable);
#else
    take(0);
#endif
    for (const auto& block : segment.blocks) {
      take(block.size), take(block.allocated ? 2 : block.active ? 1 : 0);
#if TORCH >= 20000
      if (block.active) take(block.requested_size);
#endif
    }
  }
  return hash;
}

State state_now(int device) {
  const auto stats = caching::getDeviceStats(device);
  State state;
  state.map = map_hash(device);
  const auto take = [](int64_t (&into)[2], const auto& array) { into[0] = array[0].current, into[1] = array[0].peak; };
  take(state.allocated, stats.allocated_bytes);
  take(state.reserved, stats.reserved_bytes);
  take(state.active, stats.active_bytes);
  take(state.inactive_split, stats.inactive_split_bytes);
#if TORCH >= 20000
  take(state.requested, stats.requested_bytes);
#else
  state.requested[0] = state.requested[1] = 0;
#endif
  take(state.segments, stats.segment);
  state.num_alloc_retries = stats.num_alloc_retries;
  state.num_ooms = stats.num_ooms;
  return state;
}

uint64_t answer_to(size_t size, unsigned long long pool) {
  const auto request = [&]() -> uint64_t {
    const long ooms = caching::getDeviceStats(c10::cuda::current_device()).num_ooms;
    try {
      return reinterpret_cast<uint64_t>(caching::raw_alloc(size));
    } catch (const std::exception& why) {
      if (caching::getDeviceStats(c10::cuda::current_device()).num_ooms > ooms) return 1;
      std::cerr << why.what() << std::endl;
      return 2;
    }
  };
  uint64_t answer = 0;
  if (pool)
    in_pool(pool, [&] { answer = request(); });
  else
    answer = request();
  return answer;
}

std::string play_trace(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read the trace");
  const int device = c10::cuda::current_device();
  std::map<uint64_t, void*> named;
  std::map<unsigned long long, int> begun;
  std::vector<State> states;
  std::string line, kind;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    uint64_t name = 0, answer = 0, pool = 0;
    size_t size = 0;
    int stream = 0;
    words >> kind;
    if (kind == "a") {
      words >> name >> size >> stream >> pool;
      use_stream(stream);
      if (pool) begun[pool]++;
      answer = answer_to(size, pool);
      if (answer > 2) named[name] = reinterpret_cast<void*>(answer);
    } else if (kind == "r") {
      words >> name >> stream;
      use_stream(stream);
      if (auto found = named.find(name); found != named.end()) {
        c10::DataPtr block(found->second, found->second, caching::get()->raw_deleter(), c10::Device(c10::kCUDA, device));
        caching::recordStream(block, c10::cuda::getCurrentCUDAStream(device));
        block.release_context();
      }
    } else if (kind == "f") {
      words >> name;
      if (auto found = named.find(name); found != named.end()) {
        caching::raw_delete(found->second);
        named.erase(found);
      }
    } else if (kind == "e") {
      words >> name;
      fake_cuda_events_ready(name);
    } else if (kind == "c") {
      caching::emptyCache();
    } else if (kind == "d") {
      words >> pool;
      for (int& times = begun[pool]; times > 0; times--) release_pool(pool);
    } else {
      throw std::runtime_error("no such operation");
    }
    states.push_back(state_now(device));
    states.back().answer = answer;
  }
  std::ofstream out(path + ".states", std::ios::binary);
  out.write(reinterpret_cast<const char*>(states.data()), states.size() * sizeof(State));
  if (!out.flush()) throw std::runtime_error("cannot write the states");
  return format("{\"states\": %zu}", states.size());
}

// --- the process -------------------------------------------------------------------------------------------------

#if TORCH < 20000
// The wheels of torch 1.13 have the CUDA runtime inside libc10_cuda.so. Its functions are found in .symtab, and their
// first bytes become a jump to the fake one of the same name.
void redirect_inner_runtime() {
  Dl_info library;
  if (!dladdr(dlsym(RTLD_DEFAULT, "_ZN3c104cuda12device_countEv"), &library)) _exit(3);
  void* fake = dlopen("libcudart.so.11.0", RTLD_NOW);
  const int file = open(library.dli_fname, O_RDONLY);
  struct stat about;
  fstat(file, &about);
  const char* image = static_cast<char*>(mmap(nullptr, about.st_size, PROT_READ, MAP_PRIVATE, file, 0));
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image + sections[i].sh_offset);
    const char* names = image + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); k++) {
      const char* name = names + symbols[k].st_name;
      if (strncmp(name, "cuda", 4) != 0 || ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC || !symbols[k].st_value) continue;
      const void* target = dlsym(fake, name);
      if (!target) continue;
      auto* code = static_cast<unsigned char*>(library.dli_fbase) + symbols[k].st_value;
      mprotect(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(code) & ~4095ul), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
      const unsigned char load[] = {0x48, 0xb8}, jump[] = {0xff, 0xe0};  // movabs $target, %rax; jmp *%rax
      memcpy(code, load, 2), memcpy(code + 2, &target, 8), memcpy(code + 10, jump, 2);
    }
  }
  munmap(const_cast<char*>(image), about.st_size);
  close(file);
}
#endif

// libtorch_cuda.so, which is not here, hands two things to c10 when it is loaded.
void stand_in_for_libtorch_cuda() {
#if TORCH < 20000
  redirect_inner_runtime();
#endif
  using HasContext = bool (*)(signed char);
  if (auto set = (void (*)(HasContext))dlsym(RTLD_DEFAULT, "_ZN3c104cuda9_internal20setHasPrimaryContextEPFbaE"))
    set([](signed char) { return true; });
  if (auto start = (void (*)(long))dlsym(RTLD_DEFAULT, "_ZN3c104cuda6detail21init_p2p_access_cacheEl"))
    start(c10::cuda::device_count());
}

std::string fork_idle_child() {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  return format("{\"child\": %d}", int(child));
}

const char* (*second)(const char*) = nullptr;

void load_second(const std::string& path) {
  void* library = dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW);
  if (!library) throw std::runtime_error(dlerror());
  second = (const char* (*)(const char*))dlsym(library, "bed_command");
  second("init");
}

std::string run(const std::string& line) {
  std::istringstream words(line);
  std::string command, word;
  words >> command;
  long count = 0;
  size_t size = 0;
  const auto live = [] { return format("{\"live\": %zu}", held.size()); };
  if (command == "device") {
    words >> count;
    c10::cuda::set_device(count);
  } else if (command == "stream") {
    words >> count;
    return format("{\"handle\": %lu}", (unsigned long)use_stream(count));
  } else if (command == "alloc") {
    words >> count >> size;
    hold(count, size);
    return live();
  } else if (command == "free") {
    double fraction = 0;
    words >> fraction;
    let_go(fraction);
    return live();
  } else if (command == "pool") {
    unsigned long long id = 0;
    words >> id >> count >> size;
    hold_in_pool(id, count, size);
    return live();
  } else if (command == "release_pool") {
    unsigned long long id = 0;
    words >> id;
    release_pool(id);
  } else if (command == "record_stream") {
    words >> count >> size;
    record_stream(count, size ? size : 3 << 20);
  } else if (command == "events") {
    words >> word;
    fake_cuda_events_ready(word == "ready");
  } else if (command == "oom") {
    if (allocate(size_t(32) << 40)) throw std::runtime_error("32 TiB were given");
  } else if (command == "empty_cache") {
    caching::emptyCache();
  } else if (command == "fraction") {
    double fraction = 1;
    words >> fraction;
    caching::setMemoryFraction(fraction, c10::cuda::current_device());
  } else if (command == "trace") {
    words >> word;
    return play_trace(word);
  } else if (command == "reset") {
    words >> word;
    if (word == "peak")
      caching::resetPeakStats(c10::cuda::current_device());
    else
      caching::resetAccumulatedStats(c10::cuda::current_device());
  } else if (command == "churn") {
    long rate = 0;
    words >> count >> rate >> word;
    start_churn(count, rate, word);
  } else if (command == "stop") {
    return stop_churn();
  } else if (command == "stats") {
    return stats();
  } else if (command == "snapshot") {
    return snapshot();
  } else if (command == "init") {
    stand_in_for_libtorch_cuda();
    caching::init(c10::cuda::device_count());
  } else if (command == "fork") {
    return fork_idle_child();
  } else if (command == "undumpable") {
    prctl(PR_SET_DUMPABLE, 0);
  } else if (command == "second") {
    words >> word;
    load_second(word);
  } else if (command == "second:") {
    if (!second) throw std::runtime_error("there is no second torch");
    std::getline(words >> std::ws, word);
    return second(word.c_str());
  } else {
    throw std::runtime_error("no such command");
  }
  return "{}";
}

}  // namespace

// Answers one command; a second torch in a process is spoken to through this.
extern "C" __attribute__((visibility("default"))) const char* bed_command(const char* line) {
  static std::string answer;
  try {
    answer = run(line);
  } catch (const std::exception& error) {
    std::string what = error.what();
    std::replace_if(what.begin(), what.end(), [](char c) { return c == '"' || c == '\\' || (c >= 0 && c < 32); }, ' ');
    answer = "{\"error\": \"" + what.substr(0, 400) + "\"}";
  }
  return answer.c_str();
}

int main(int argc, char** argv) {
  // Where Yama is in force, a process that is not our parent may read us too.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (argc < 2 || strcmp(argv[1], "--not-initialized") != 0) bed_command("init");
  const int devices = argc < 2 ? int(c10::cuda::device_count()) : 0;
  std::cout << format("{\"pid\": %d, \"devices\": %d}", int(getpid()), devices) << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line.rfind("exec ", 0) == 0) {
      std::cout << "{}" << std::endl;
      execlp(line.c_str() + 5, line.c_str() + 5, nullptr);
      _exit(127);
    }
    std::cout << bed_command(line.c_str()) << std::endl;
  }
  _exit(0);
}
