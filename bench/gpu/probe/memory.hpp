// Device memory, taken in steps by a named method until it is refused or there is enough.
#pragma once

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "driver.hpp"
#include "line.hpp"

constexpr size_t MIB = 1024 * 1024;

struct Block {
  std::string method;
  CUdeviceptr address = 0;
  size_t size = 0;
  CUmemGenericAllocationHandle handle = 0;
};

class Memory {
 public:
  Memory(Driver& driver, CUdevice device) : driver_(driver), device_(device) {}

  void alloc(const std::string& method, size_t upto_mib, size_t step_mib) {
    const auto start = Clock::now();
    size_t taken_mib = 0;
    CUresult result = CUDA_SUCCESS;
    while (taken_mib + step_mib <= upto_mib) {
      result = take(method, step_mib * MIB);
      if (result != CUDA_SUCCESS) break;
      taken_mib += step_mib;
    }
    Line line("alloc");
    line.text("method", method).text("result", driver_.name_of(result));
    line.count("asked_mib", upto_mib).count("step_mib", step_mib).count("allocated_mib", taken_mib);
    line.number("seconds", seconds_since(start));
    describe(line).print();
  }

  void free_all() {
    CUresult result = CUDA_SUCCESS;
    for (Block& block : blocks_) {
      const CUresult one = give_back(block);
      if (one != CUDA_SUCCESS) result = one;
    }
    blocks_.clear();
    Line line("free");
    describe(line.text("result", driver_.name_of(result))).print();
  }

  // Take memory that another process may open, and leave the handles in a file.
  void share(size_t size_mib, size_t step_mib, const std::string& path) {
    alloc("malloc", size_mib, step_mib);
    std::ofstream file(path + ".part", std::ios::binary);
    CUresult result = CUDA_SUCCESS;
    for (const Block& block : blocks_) {
      CUipcMemHandle handle;
      result = CALL(driver_, cuIpcGetMemHandle, &handle, block.address);
      if (result != CUDA_SUCCESS) break;
      file.write(reinterpret_cast<const char*>(&block.size), sizeof block.size);
      file.write(reinterpret_cast<const char*>(&handle), sizeof handle);
    }
    file.close();
    std::rename((path + ".part").c_str(), path.c_str());
    Line("share").text("result", driver_.name_of(result)).count("blocks", blocks_.size()).print();
  }

  void import(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    size_t size = 0, total = 0;
    CUipcMemHandle handle;
    CUresult result = file ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
    while (result == CUDA_SUCCESS && file.read(reinterpret_cast<char*>(&size), sizeof size) &&
           file.read(reinterpret_cast<char*>(&handle), sizeof handle)) {
      Block block{"ipc", 0, size, 0};
      result = CALL(driver_, cuIpcOpenMemHandle, &block.address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      if (result == CUDA_SUCCESS) result = touch(block);
      if (result != CUDA_SUCCESS) break;
      blocks_.push_back(block);
      total += size;
    }
    Line line("import");
    line.text("method", "ipc").text("result", driver_.name_of(result)).count("allocated_mib", total / MIB);
    describe(line).print();
  }

  Line& describe(Line& line) {
    size_t free_bytes = 0, total_bytes = 0;
    if (CALL(driver_, cuMemGetInfo, &free_bytes, &total_bytes) == CUDA_SUCCESS) {
      line.count("free_bytes", free_bytes).count("total_bytes", total_bytes);
    }
    return line;
  }

 private:
  CUresult take(const std::string& method, size_t size) {
    Block block{method, 0, size, 0};
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (method == "malloc") result = CALL(driver_, cuMemAlloc, &block.address, size);
    if (method == "async") result = CALL(driver_, cuMemAllocAsync, &block.address, size, nullptr);
    if (method == "managed") {
      result = CALL(driver_, cuMemAllocManaged, &block.address, size, CU_MEM_ATTACH_GLOBAL);
    }
    if (method == "vmm") result = map(block);
    if (result != CUDA_SUCCESS) return result;
    blocks_.push_back(block);
    return touch(block);
  }

  // Writing on the device is what makes managed memory resident there, and asynchronous memory real.
  CUresult touch(const Block& block) {
    const CUresult result = CALL(driver_, cuMemsetD8, block.address, 1, block.size);
    return result == CUDA_SUCCESS ? CALL(driver_, cuCtxSynchronize) : result;
  }

  CUresult map(Block& block) {
    CUmemAllocationProp wanted;
    std::memset(&wanted, 0, sizeof wanted);
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_;
    size_t unit = 0;
    CUresult result = CALL(driver_, cuMemGetAllocationGranularity, &unit, &wanted,
                           CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS) return result;
    block.size = (block.size + unit - 1) / unit * unit;
    result = CALL(driver_, cuMemCreate, &block.handle, block.size, &wanted, 0);
    if (result != CUDA_SUCCESS) return result;
    result = CALL(driver_, cuMemAddressReserve, &block.address, block.size, 0, 0, 0);
    if (result == CUDA_SUCCESS) {
      result = CALL(driver_, cuMemMap, block.address, block.size, 0, block.handle, 0);
    }
    if (result != CUDA_SUCCESS) return result;
    CUmemAccessDesc access;
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CALL(driver_, cuMemSetAccess, block.address, block.size, &access, 1);
  }

  CUresult give_back(const Block& block) {
    if (block.method == "ipc") return CALL(driver_, cuIpcCloseMemHandle, block.address);
    if (block.method == "async") return CALL(driver_, cuMemFreeAsync, block.address, nullptr);
    if (block.method != "vmm") return CALL(driver_, cuMemFree, block.address);
    CALL(driver_, cuMemUnmap, block.address, block.size);
    CALL(driver_, cuMemAddressFree, block.address, block.size);
    return CALL(driver_, cuMemRelease, block.handle);
  }

  Driver& driver_;
  CUdevice device_;
  std::vector<Block> blocks_;
};
