// The CUDA driver, loaded when the probe runs: a machine without one gets an answer instead of a loader's error.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#if CUDA_VERSION >= 12080
#define CHECKPOINT_FUNCTIONS(X)                                                                              \
  X(cuCheckpointProcessLock)                                                                                 \
  X(cuCheckpointProcessCheckpoint)                                                                           \
  X(cuCheckpointProcessRestore)                                                                              \
  X(cuCheckpointProcessUnlock)                                                                               \
  X(cuCheckpointProcessGetState)
#else
#define CHECKPOINT_FUNCTIONS(X)
#endif

#define DRIVER_FUNCTIONS(X)                                                                                  \
  X(cuInit)                                                                                                  \
  X(cuDriverGetVersion)                                                                                      \
  X(cuGetErrorName)                                                                                          \
  X(cuDeviceGet)                                                                                             \
  X(cuDeviceGetName)                                                                                         \
  X(cuDeviceGetUuid)                                                                                         \
  X(cuDeviceGetAttribute)                                                                                    \
  X(cuDevicePrimaryCtxRetain)                                                                                \
  X(cuCtxSetCurrent)                                                                                         \
  X(cuCtxSynchronize)                                                                                        \
  X(cuMemGetInfo)                                                                                            \
  X(cuMemAlloc)                                                                                              \
  X(cuMemFree)                                                                                               \
  X(cuMemAllocManaged)                                                                                       \
  X(cuMemAllocAsync)                                                                                         \
  X(cuMemFreeAsync)                                                                                          \
  X(cuMemGetAllocationGranularity)                                                                           \
  X(cuMemCreate)                                                                                             \
  X(cuMemRelease)                                                                                            \
  X(cuMemAddressReserve)                                                                                     \
  X(cuMemAddressFree)                                                                                        \
  X(cuMemMap)                                                                                                \
  X(cuMemUnmap)                                                                                              \
  X(cuMemSetAccess)                                                                                          \
  X(cuMemsetD8)                                                                                              \
  X(cuMemcpyDtoDAsync)                                                                                       \
  X(cuIpcGetMemHandle)                                                                                       \
  X(cuIpcOpenMemHandle)                                                                                      \
  X(cuIpcCloseMemHandle)                                                                                     \
  X(cuModuleLoad)                                                                                            \
  X(cuModuleGetFunction)                                                                                     \
  X(cuLaunchKernel)                                                                                          \
  CHECKPOINT_FUNCTIONS(X)

struct Driver {
// cuda.h names the newest version of a function by a macro, so the member and the symbol follow it.
#define MEMBER(name) decltype(&::name) name = nullptr;
  DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER

  // Null, or why there is no driver. A function that an older driver lacks stays null.
  const char* load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return dlerror();
#define QUOTED(name) #name
#define SYMBOL(name) QUOTED(name)
#define LOAD(name) name = reinterpret_cast<decltype(name)>(dlsym(library, SYMBOL(name)));
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    return cuInit == nullptr ? "libcuda.so.1 has no cuInit" : nullptr;
  }

  const char* name_of(CUresult result) const {
    const char* name = nullptr;
    if (cuGetErrorName == nullptr || cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
      return "CUDA_ERROR_WITHOUT_A_NAME";
    }
    return name;
  }
};

// An old driver lacks functions that newer headers know.
#define CALL(driver, function, ...)                                                                          \
  ((driver).function == nullptr ? CUDA_ERROR_NOT_FOUND : (driver).function(__VA_ARGS__))
