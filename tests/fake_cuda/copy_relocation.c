// Linked into an executable that is not position independent, this makes the executable own `allocator`: the linker
// reserves room there and copies it at start, and the one inside libc10_cuda.so stays null. Many C++ programs are like
// that; Python never is.
extern void* _ZN3c104cuda20CUDACachingAllocator9allocatorE;

void* allocator_by_address(void) { return _ZN3c104cuda20CUDACachingAllocator9allocatorE; }
