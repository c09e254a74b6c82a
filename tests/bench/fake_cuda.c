/* A libcuda.so.1 that keeps accounts of memory and nothing else, so that the probe's words can be tested without a
 * GPU: FAKE_CUDA_LIMIT_MIB is where allocations are refused. It measures nothing, and nothing reports its figures. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ull * 1024)
#define TOTAL (16384 * MIB)

static unsigned long long used, next_address = 1ull << 32;
static int faulted;
static struct { unsigned long long address, size; } blocks[4096];
static int block_count;

static unsigned long long limit(void) {
  const char* text = getenv("FAKE_CUDA_LIMIT_MIB");
  return text ? strtoull(text, NULL, 10) * MIB : TOTAL;
}

static CUresult take(CUdeviceptr* address, size_t size) {
  if (faulted) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (used + size > limit() || block_count == 4096) return CUDA_ERROR_OUT_OF_MEMORY;
  used += size;
  *address = next_address;
  blocks[block_count].address = next_address;
  blocks[block_count++].size = size;
  next_address += size;
  return CUDA_SUCCESS;
}

static CUresult give(CUdeviceptr address) {
  for (int i = 0; i < block_count; ++i) {
    if (blocks[i].address == address && blocks[i].size) {
      used -= blocks[i].size;
      blocks[i].size = 0;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

/* A file beside the library, because the steps give their children a clean environment. */
static int hangs(void) {
  char path[4096];
  const char* directory = getenv("LD_LIBRARY_PATH");
  snprintf(path, sizeof path, "%s/hangs", directory ? directory : "");
  return access(path, F_OK) == 0;
}

CUresult cuInit(unsigned flags) {
  (void)flags;
  if (hangs()) pause();
  return getenv("FAKE_CUDA_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    default: *name = "CUDA_ERROR_OF_ANOTHER_KIND";
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  (void)device;
  return snprintf(name, (size_t)size, "made-up \"GPU\""), CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  (void)device;
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = (char)i;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  (void)which, (void)device;
  return *value = 40, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  (void)device;
  return *context = (CUcontext)1, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { return (void)context, CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { return faulted ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = limit() - used;
  *total_bytes = TOTAL;
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) { return take(address, size); }
CUresult cuMemFree_v2(CUdeviceptr address) { return give(address); }
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream stream) { return (void)stream, take(address, size); }
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return (void)stream, give(address); }
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned flags) { return (void)flags, take(address, size); }
CUresult cuMemGetAllocationGranularity(size_t* unit, const CUmemAllocationProp* wanted, CUmemAllocationGranularity_flags which) {
  (void)wanted, (void)which;
  return *unit = 2 * MIB, CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* wanted, unsigned long long flags) {
  (void)wanted, (void)flags;
  return take((CUdeviceptr*)handle, size);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return give(handle); }
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
  (void)size, (void)alignment, (void)wanted, (void)flags;
  return *address = next_address += size, CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) { return (void)address, (void)size, CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  (void)address, (void)size, (void)offset, (void)handle, (void)flags;
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t size) { return (void)address, (void)size, CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count) {
  (void)address, (void)size, (void)access, (void)count;
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t size) {
  (void)address, (void)value, (void)size;
  return faulted ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  (void)to, (void)from, (void)size, (void)stream;
  return CUDA_SUCCESS;
}
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  memcpy(handle->reserved, &address, sizeof address);
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  (void)flags;
  memcpy(address, handle.reserved, sizeof *address);
  return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) { return (void)address, CUDA_SUCCESS; }
CUresult cuModuleLoad(CUmodule* module, const char* path) {
  *module = (CUmodule)1;
  return access(path, R_OK) == 0 ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  (void)module;
  *function = strcmp(name, "write_one") ? (CUfunction)1 : (CUfunction)2;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** arguments, void** extra) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments, (void)extra;
  if (function == (CUfunction)2) faulted = 1;
  usleep(1000);
  return CUDA_SUCCESS;
}
