// A library that is named libc10_cuda.so and is not PyTorch's: what a reader that trusts a name would stumble over.
//
// It exports the symbol `allocator`, whose object says by its type information that it is the caching allocator of
// PyTorch; and where the list of devices would be there are pointers that lead in circles, to the last byte of a page,
// and to nowhere. build.sh makes it, a test puts it into a process with LD_PRELOAD.
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static struct {
  void* functions;
  const char* name;
} type_information = {0, "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"};

static struct {
  intptr_t to_top;
  void* type_information;
  void* functions[64];
} table = {0, &type_information, {0}};

static void* object[32768];

void* _ZN3c104cuda20CUDACachingAllocator9allocatorE = object;

__attribute__((constructor)) static void lay_out(void) {
  const size_t page = 4096;
  char* last = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(last + page, page);
  object[0] = table.functions;
  for (size_t i = 1; i < sizeof object / sizeof *object; i++) {
    switch (i % 5) {
      case 0: object[i] = object; break;                    // itself
      case 1: object[i] = &object[i + 8 < 32768 ? i + 8 : 1]; break;  // further inside
      case 2: object[i] = last + page - 8; break;           // the last word that can be read
      case 3: object[i] = (void*)(uintptr_t)0xdeadbeef000; break;
      case 4: object[i] = 0; break;
    }
  }
}
