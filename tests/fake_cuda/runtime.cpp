// A CUDA without a GPU: what libc10_cuda.so asks of libcudart, libcuda and libnvidia-ml, in one library.
//
// PyTorch's caching allocator keeps books about device memory and never looks into it. So addresses that nothing
// backs, a capacity and an event that is ready or not are enough for the real allocator to run: it splits, merges,
// retries, runs out of memory as it would on a card. Kernels cannot run here.
//
// build.sh links this once per CUDA release as libcudart.so.N, where N is 11.0, 12 or 13, both as SONAME and as the
// version of every symbol, because the wheels ask for `cudaMalloc@libcudart.so.12`. The same file stands under the
// names libcuda.so.1 and libnvidia-ml.so.1, which the wheels open by name.
//
// Environment:
//   FAKE_CUDA_DEVICES   number of devices, default 2
//   FAKE_CUDA_GIB       capacity of each in GiB, default 80
//   FAKE_CUDA_MIB       the same in MiB, instead
//   FAKE_CUDA_WAIT      time that a wait for a stream takes, in microseconds, default 0
//
// And for the harness:
//   fake_cuda_events_ready(bool)   whether cudaEventQuery says that the stream has come past an event
//   fake_cuda_capturing(id)        a stream capture with this id is going on; 0: none
//
// Functions that the allocator only looks up by name, and never calls in what the bed does, answer "not supported".
//
// No header of CUDA is used: one source serves three major releases whose declarations differ.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <unistd.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Error { success = 0, invalid_value = 1, out_of_memory = 2, invalid_device = 101, not_ready = 600, not_supported = 801 };

constexpr uint64_t GRANULE = 2 << 20;  // what the driver maps memory in
constexpr int MOST_DEVICES = 16;

// Addresses that no real memory has here: reservations are as large as a device, and there is one per stream.
constexpr uint64_t FIRST_RESERVATION = 0x600000000000, FIRST_ALLOCATION = 0x7a0000000000;
constexpr int ADDRESS_BITS_OF_A_DEVICE = 37;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = getenv(name);
  return value ? strtoull(value, nullptr, 10) : otherwise;
}

int device_count() {
  static const int count = int(from_environment("FAKE_CUDA_DEVICES", 2));
  return count < MOST_DEVICES ? count : MOST_DEVICES;
}

uint64_t capacity() {
  static const uint64_t bytes = from_environment("FAKE_CUDA_MIB", from_environment("FAKE_CUDA_GIB", 80) << 10) << 20;
  return bytes;
}

uint64_t round_up(uint64_t size, uint64_t to) { return (size + to - 1) / to * to; }

// Memory of one device. Addresses go down, as a real driver's do (src/allocator/driver.rs). One handed back is handed
// out again for the same size; the highest first, so that nothing depends on the order in which several were handed back.
struct Device {
  uint64_t used = 0;
  uint64_t taken = 0;  // of the addresses, from the end
  std::set<std::pair<uint64_t, uint64_t>> returned;  // size and address
};

struct Piece {
  int device;
  uint64_t size;
};

std::mutex lock;
Device devices[MOST_DEVICES];
std::map<uint64_t, Piece> allocated;  // by cudaMalloc: address to piece
std::map<uint64_t, Piece> physical;   // by cuMemCreate: handle to piece
uint64_t next_reservation = FIRST_RESERVATION;

std::atomic<uint64_t> next_handle{1};
std::atomic<bool> events_ready{true};
std::atomic<uint64_t> capture_id{0};

thread_local int current_device = 0;
thread_local Error last_error = success;

Error result(Error error) {
  if (error != success && error != not_ready) last_error = error;
  return error;
}

template <class Handle>
void new_handle(Handle* into, uint64_t kind) {
  *into = Handle(kind + 64 * next_handle++);
}

constexpr uint64_t STREAM = 0x300000000000, EVENT = 0x200000000000, MEMORY_POOL = 0x100000000000;

Error unsupported() { return not_supported; }

}  // namespace

EXPORT void fake_cuda_events_ready(bool ready) { events_ready = ready; }
EXPORT void fake_cuda_capturing(uint64_t id) { capture_id = id; }

// --- runtime: devices and errors

EXPORT Error cudaGetDeviceCount(int* count) { *count = device_count(); return success; }
EXPORT Error cudaGetDevice(int* device) { *device = current_device; return success; }
EXPORT Error cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(invalid_device);
  current_device = device;
  return success;
}
EXPORT Error cudaDeviceSynchronize() { return success; }
EXPORT Error cudaDriverGetVersion(int* version) { *version = 13000; return success; }
EXPORT Error cudaRuntimeGetVersion(int* version) { *version = 12000; return success; }
EXPORT Error cudaDeviceGetAttribute(int* value, int, int) { *value = 1; return success; }
EXPORT Error cudaDeviceCanAccessPeer(int* can, int, int) { *can = 1; return success; }
EXPORT Error cudaDeviceEnablePeerAccess(int, unsigned) { return success; }

// The first fields are the same in all releases: name[256], uuid[16], luid[8], luidDeviceNodeMask and padding,
// totalGlobalMem. 720 bytes is the smallest struct of the releases used. Whole wheels (record_holders.py) also divide by
// the sizes of a warp and of a block, and by the number of multiprocessors.
EXPORT Error cudaGetDeviceProperties_v2(void* properties, int) {
  memset(properties, 0, 720);
  strcpy(static_cast<char*>(properties), "Fake GPU");
  const uint64_t total = capacity();
  memcpy(static_cast<char*>(properties) + 288, &total, sizeof total);
  const auto set = [&](int offset, std::initializer_list<int> values) {
    memcpy(static_cast<char*>(properties) + offset, values.begin(), values.size() * sizeof(int));
  };
  set(308, {32});                                              // warpSize
  set(320, {1024, 1024, 1024, 64, 2147483647, 65535, 65535});  // maxThreadsPerBlock, maxThreadsDim, maxGridSize
  set(360, {8, 0});                                            // major, minor
  set(384, {108, 108});                                        // multiProcessorCount, up to CUDA 12 at 388
  // maxThreadsPerMultiProcessor is at another place in each major release.
  for (int offset = 600; offset < 640; offset += 4) set(offset, {2048});
  return success;
}
EXPORT Error cudaGetDeviceProperties(void* properties, int device) { return cudaGetDeviceProperties_v2(properties, device); }

EXPORT Error cudaGetLastError() { const Error error = last_error; last_error = success; return error; }
EXPORT Error cudaPeekAtLastError() { return last_error; }
EXPORT const char* cudaGetErrorString(Error error) {
  switch (error) {
    case success: return "no error";
    case out_of_memory: return "out of memory";
    case not_ready: return "device not ready";
    default: return "an error of the fake CUDA";
  }
}
EXPORT const char* cudaGetErrorName(Error error) { return error == success ? "cudaSuccess" : "cudaErrorFake"; }

// --- runtime: memory

EXPORT Error cudaMalloc(void** pointer, size_t size) {
  std::lock_guard guard(lock);
  Device& device = devices[current_device];
  const uint64_t rounded = round_up(size, 512);
  if (device.used + rounded > capacity()) return result(out_of_memory);
  uint64_t address;
  auto again = device.returned.upper_bound({rounded, UINT64_MAX});
  if (again != device.returned.begin() && (--again)->first == rounded) {
    address = again->second;
    device.returned.erase(again);
  } else {
    device.taken = round_up(device.taken + rounded, GRANULE);
    address = FIRST_ALLOCATION + (uint64_t(current_device + 1) << ADDRESS_BITS_OF_A_DEVICE) - device.taken;
  }
  device.used += rounded;
  allocated[address] = {current_device, rounded};
  *pointer = reinterpret_cast<void*>(address);
  return success;
}

EXPORT Error cudaFree(void* pointer) {
  if (!pointer) return success;
  std::lock_guard guard(lock);
  auto found = allocated.find(reinterpret_cast<uint64_t>(pointer));
  if (found == allocated.end()) return result(invalid_value);
  const auto [device, size] = found->second;
  devices[device].used -= size;
  devices[device].returned.emplace(size, found->first);
  allocated.erase(found);
  return success;
}

EXPORT Error cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard guard(lock);
  *total = capacity();
  *free = capacity() - devices[current_device].used;
  return success;
}

// The driver's own pool, which backend:cudaMallocAsync asks.
EXPORT Error cudaMallocAsync(void** pointer, size_t size, void*) { return cudaMalloc(pointer, size); }
EXPORT Error cudaFreeAsync(void* pointer, void*) { return cudaFree(pointer); }
EXPORT Error cudaDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = reinterpret_cast<void*>(MEMORY_POOL + device);
  return success;
}
EXPORT Error cudaMemPoolSetAttribute(void*, int, void*) { return success; }
EXPORT Error cudaMemPoolGetAttribute(void*, int, void* value) { memset(value, 0, 8); return success; }
EXPORT Error cudaMemPoolTrimTo(void*, size_t) { return success; }
EXPORT Error cudaMemPoolSetAccess(void*, void*, size_t) { return success; }
EXPORT Error cudaDeviceGetGraphMemAttribute(int, int, void* value) { memset(value, 0, 8); return success; }
EXPORT Error cudaDeviceSetGraphMemAttribute(int, int, void*) { return success; }

EXPORT Error cudaMemcpy(void*, const void*, size_t, int) { return success; }
EXPORT Error cudaMemcpyAsync(void*, const void*, size_t, int, void*) { return success; }
EXPORT Error cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, void*) { return success; }
// Pinned memory of the host, into which the value of `.item()` is copied.
EXPORT Error cudaHostAlloc(void** memory, size_t size, unsigned) { *memory = calloc(1, size); return success; }
EXPORT Error cudaMallocHost(void** memory, size_t size) { return cudaHostAlloc(memory, size, 0); }
EXPORT Error cudaFreeHost(void* memory) { free(memory); return success; }
EXPORT Error cudaIpcGetMemHandle(void*, void*) { return result(not_supported); }
EXPORT Error cudaIpcOpenMemHandle() { return result(not_supported); }
EXPORT Error cudaIpcCloseMemHandle(void*) { return success; }

// --- runtime: streams, events, capture

EXPORT Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return success;
}
EXPORT Error cudaStreamCreateWithPriority(void** stream, unsigned, int) { new_handle(stream, STREAM); return success; }
EXPORT Error cudaStreamCreateWithFlags(void** stream, unsigned) { new_handle(stream, STREAM); return success; }
EXPORT Error cudaStreamDestroy(void*) { return success; }
EXPORT Error cudaStreamQuery(void*) { return success; }
EXPORT Error cudaStreamSynchronize(void*) {
  static const useconds_t wait = useconds_t(from_environment("FAKE_CUDA_WAIT", 0));
  if (wait) usleep(wait);
  return success;
}
EXPORT Error cudaStreamWaitEvent(void*, void*, unsigned) { return success; }

EXPORT Error cudaEventCreateWithFlags(void** event, unsigned) { new_handle(event, EVENT); return success; }
EXPORT Error cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT Error cudaEventDestroy(void*) { return success; }
EXPORT Error cudaEventRecord(void*, void*) { return success; }
EXPORT Error cudaEventSynchronize(void*) { return success; }
EXPORT Error cudaEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 0; return success; }
EXPORT Error cudaEventQuery(void*) { return events_ready ? success : not_ready; }

// Up to torch 2.0 a pool of its own is reached only through a capture, whose id it asks here.
EXPORT Error cudaStreamIsCapturing(void*, int* status) { *status = 0; return success; }
EXPORT Error cudaStreamGetCaptureInfo(void*, int* status, uint64_t* id) {
  *status = capture_id ? 1 : 0;
  if (id) *id = capture_id;
  return success;
}
EXPORT Error cudaStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void*, void*, void*) {
  return cudaStreamGetCaptureInfo(stream, status, id);
}
EXPORT Error cudaThreadExchangeStreamCaptureMode(int*) { return success; }
EXPORT Error cudaGraphNodeGetDependencies(void*, void*, size_t* count) { if (count) *count = 0; return success; }

// --- driver: virtual memory, which expandable segments are made of

EXPORT Error cuInit(unsigned) { return success; }
EXPORT Error cuDriverGetVersion(int* version) { *version = 13000; return success; }
EXPORT Error cuGetErrorString(int, const char** text) { *text = "an error of the fake driver"; return success; }
EXPORT Error cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_FAKE"; return success; }
EXPORT Error cuDeviceGet(int* device, int ordinal) { *device = ordinal; return success; }
EXPORT Error cuDeviceGetCount(int* count) { *count = device_count(); return success; }
EXPORT Error cuDeviceGetAttribute(int* value, int, int) { *value = 1; return success; }
EXPORT Error cuCtxGetCurrent(void** context) { *context = reinterpret_cast<void*>(16); return success; }
EXPORT Error cuCtxSetCurrent(void*) { return success; }
EXPORT Error cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return success;
}

EXPORT Error cuMemGetAllocationGranularity(size_t* granularity, const void*, int) { *granularity = GRANULE; return success; }
EXPORT Error cuMemAddressReserve(uint64_t* address, size_t size, size_t, uint64_t, uint64_t) {
  std::lock_guard guard(lock);
  *address = next_reservation;
  next_reservation += round_up(size, GRANULE);
  return success;
}
EXPORT Error cuMemAddressFree(uint64_t, size_t) { return success; }
EXPORT Error cuMemCreate(uint64_t* handle, size_t size, const void* properties, uint64_t) {
  std::lock_guard guard(lock);
  // CUmemAllocationProp: type, requestedHandleTypes, location.type, location.id
  int device = static_cast<const int*>(properties)[3];
  if (device < 0 || device >= device_count()) return result(invalid_device);
  if (devices[device].used + size > capacity()) return out_of_memory;
  devices[device].used += size;
  *handle = next_handle++;
  physical[*handle] = {device, size};
  return success;
}
EXPORT Error cuMemRelease(uint64_t handle) {
  std::lock_guard guard(lock);
  auto found = physical.find(handle);
  if (found == physical.end()) return invalid_value;
  devices[found->second.device].used -= found->second.size;
  physical.erase(found);
  return success;
}
EXPORT Error cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t) { return success; }
EXPORT Error cuMemUnmap(uint64_t, size_t) { return success; }
EXPORT Error cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return success; }
EXPORT Error cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t pointer) {
  if (base) *base = pointer;
  if (size) *size = 0;
  return success;
}
EXPORT Error cuMemGetAddressRange(uint64_t* base, size_t* size, uint64_t pointer) {
  return cuMemGetAddressRange_v2(base, size, pointer);
}

// How libc10_cuda finds the driver's functions: by name from libcuda.so.1 (up to 2.10), or through these.
static void* by_name(const char* name) {
  static void* const self = dlopen("libcuda.so.1", RTLD_NOW);
  void* function = self ? dlsym(self, name) : nullptr;
  return function ? function : reinterpret_cast<void*>(unsupported);
}
EXPORT Error cudaGetDriverEntryPoint(const char* name, void** function, uint64_t, int* found) {
  *function = by_name(name);
  if (found) *found = 0;
  return success;
}
EXPORT Error cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, uint64_t, int* found) {
  return cudaGetDriverEntryPoint(name, function, 0, found);
}
EXPORT Error cuGetProcAddress(const char* name, void** function, int, uint64_t) {
  *function = by_name(name);
  return success;
}
EXPORT Error cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* found) {
  return cudaGetDriverEntryPoint(name, function, 0, found);
}

// --- what is looked up by name (a missing one is an error there) and not called by the bed

#define UNSUPPORTED(name) EXPORT Error name() { return not_supported; }
UNSUPPORTED(cuCtxFromGreenCtx)
UNSUPPORTED(cuCtxPopCurrent)
UNSUPPORTED(cuCtxPushCurrent)
UNSUPPORTED(cuDevResourceGenerateDesc)
UNSUPPORTED(cuDevSmResourceSplitByCount)
UNSUPPORTED(cuDeviceGetDevResource)
UNSUPPORTED(cuGreenCtxCreate)
UNSUPPORTED(cuGreenCtxDestroy)
UNSUPPORTED(cuGreenCtxStreamCreate)
UNSUPPORTED(cuLogsRegisterCallback)
UNSUPPORTED(cuLogsUnregisterCallback)
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle)
UNSUPPORTED(cuMemImportFromShareableHandle)
UNSUPPORTED(cuMemRetainAllocationHandle)
UNSUPPORTED(cuMemsetD32Async)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuStreamWriteValue32)

// --- NVML: an OOM's message says who else is on the device; nobody

EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = 13000; return 0; }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) { *device = reinterpret_cast<void*>(1); return 0; }
EXPORT int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { *count = 0; return 0; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, unsigned*) { return 3; }  // not supported
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
EXPORT int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }  // the caller has put "no fabric" there
