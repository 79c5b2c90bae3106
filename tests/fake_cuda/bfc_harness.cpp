// A process with real BFC allocators of JAX or TensorFlow, without a GPU: loads the library of a wheel, and calls the
// allocator at the addresses that its symbol table names. Memory comes from a sub-allocator that only assigns addresses.
//
//     bfc_harness LIBRARY CONSTRUCTOR ALLOCATE FREE STATISTICS      (offsets in hexadecimal)
//
// It answers each line on stdin with a line of JSON:
//
//     new NAME LIMIT GROWS COALESCES    creates an allocator; the next one has the next number
//     allocate N BYTES                  random N COUNT SEED      free N
//     churn N MICROSECONDS              allocates and frees in a thread, with a pause after each; stop
//     report                            statistics and live allocations of all allocators
//
// SPATIAL=1 switches on the two-ended mode that JAX 0.11 and later use when they preallocate.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

// tsl::SubAllocator: the same virtual functions in the same order, and room for its members.
struct SubAllocator {
  explicit SubAllocator(bool coalesces) : coalesces(coalesces) {}
  virtual ~SubAllocator() {}
  virtual void* Alloc(size_t, size_t bytes, size_t* received) {
    static size_t next = 0x700000000000;
    if (!coalesces) next += 0x10000000;
    next = (next + 0x1fffff) & ~size_t(0x1fffff);
    size_t address = next;
    next += bytes;
    *received = bytes;
    return reinterpret_cast<void*>(address);
  }
  virtual void Free(void*, size_t) {}
  virtual bool SupportsCoalescing() const { return coalesces; }
  virtual int GetMemoryType() const { return 1; }
  virtual size_t GetAllocationGranularity() const { return 256; }
  virtual size_t Reserved() const { return 0; }
  bool coalesces;
  char members[128] = {};
};

// The beginning of tsl::AllocatorStats, and room for the rest.
struct Statistics {
  long allocations, in_use, peak_in_use, largest_allocation, limit;
  long rest[35];
};

struct Allocator {
  void* object;
  std::map<size_t, size_t> live;
};

static size_t base;
static std::vector<Allocator> allocators;

template <typename Function>
static Function at(const char* offset) {
  return reinterpret_cast<Function>(base + std::strtoull(offset, nullptr, 16));
}

int main(int count, char** arguments) {
  if (count != 6) return 2;
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  link_map* map;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  base = map->l_addr;
  auto construct = at<void (*)(void*, void**, size_t, const std::string&, const void*)>(arguments[2]);
  auto allocate = at<void* (*)(void*, size_t, size_t)>(arguments[3]);
  auto deallocate = at<void (*)(void*, void*)>(arguments[4]);
  auto statistics = at<Statistics (*)(void*)>(arguments[5]);
  bool is_tensorflow = std::string(arguments[1]).find("tensorflow") != std::string::npos;

  std::atomic<bool> stopped{false};
  std::atomic<long> operations{0};
  std::thread churning;
  std::printf("{\"pid\": %d}\n", getpid());
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "new") {
      std::string name;
      size_t limit;
      bool grows, coalesces;
      words >> name >> limit >> grows >> coalesces;
      void* object = std::calloc(1, 8192);
      void* source = new SubAllocator(coalesces);
      // Options: whether the pool grows; in TensorFlow, whether that is set; the two-ended mode.
      char options[64] = {};
      options[0] = grows;
      options[1] = is_tensorflow;
      options[16] = std::getenv("SPATIAL") && !grows;
      construct(object, &source, limit, name, options);
      allocators.push_back({object, {}});
    } else if (command == "allocate") {
      size_t number, bytes;
      words >> number >> bytes;
      void* address = allocate(allocators.at(number).object, 64, bytes);
      if (address) allocators[number].live[reinterpret_cast<size_t>(address)] = bytes;
    } else if (command == "random") {
      size_t number, steps;
      unsigned seed;
      words >> number >> steps >> seed;
      std::srand(seed);
      Allocator& allocator = allocators.at(number);
      for (size_t step = 0; step < steps; step++) {
        if (std::rand() % 3 || allocator.live.empty()) {
          size_t bytes = size_t(1) << std::rand() % 27;
          bytes += std::rand() % bytes;
          void* address = allocate(allocator.object, 256, bytes);
          if (address) allocator.live[reinterpret_cast<size_t>(address)] = bytes;
        } else {
          auto freed = std::next(allocator.live.begin(), std::rand() % allocator.live.size());
          deallocate(allocator.object, reinterpret_cast<void*>(freed->first));
          allocator.live.erase(freed);
        }
      }
    } else if (command == "free") {
      size_t number;
      words >> number;
      Allocator& allocator = allocators.at(number);
      for (auto& [address, bytes] : allocator.live) {
        deallocate(allocator.object, reinterpret_cast<void*>(address));
      }
      allocator.live.clear();
    } else if (command == "churn") {
      size_t number;
      long pause;
      words >> number >> pause;
      void* object = allocators.at(number).object;
      stopped = false;
      operations = 0;
      churning = std::thread([=, &stopped, &operations] {
        std::vector<void*> live;
        unsigned random = 1;
        for (; !stopped; operations++) {
          random = random * 1664525 + 1013904223;
          if (live.size() < 2000 || random >> 31) {
            void* address = allocate(object, 256, (random >> 8) % 5000000 + 1);
            if (address) live.push_back(address);
          } else {
            size_t index = (random >> 8) % live.size();
            deallocate(object, live[index]);
            live[index] = live.back();
            live.pop_back();
          }
          auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(pause);
          while (std::chrono::steady_clock::now() < until) {
          }
        }
        for (void* address : live) deallocate(object, address);
      });
    } else if (command == "stop") {
      stopped = true;
      churning.join();
    } else if (command == "report") {
      std::printf("{\"operations\": %ld, \"allocators\": [", operations.load());
      for (size_t number = 0; number < allocators.size(); number++) {
        Statistics found = statistics(allocators[number].object);
        std::printf("%s{\"address\": %zu, \"statistics\": [%ld, %ld, %ld, %ld, %ld], \"live\": [", number ? ", " : "",
                    reinterpret_cast<size_t>(allocators[number].object), found.allocations, found.in_use,
                    found.peak_in_use, found.largest_allocation, found.limit);
        const char* separator = "";
        for (auto& [address, bytes] : allocators[number].live) {
          std::printf("%s[%zu, %zu]", separator, address, bytes);
          separator = ", ";
        }
        std::printf("]}");
      }
      std::printf("]}\n");
    }
    if (command != "report") std::printf("{}\n");
    std::fflush(stdout);
  }
  _exit(0);
}
