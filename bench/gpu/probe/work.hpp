// Work for the GPU: loops whose every round is timed, one kernel that faults, one that shows that all is well.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "driver.hpp"
#include "line.hpp"

class Work {
 public:
  Work(Driver& driver, std::string kernels) : driver_(driver), kernels_(std::move(kernels)) {}

  void loop(const std::string& kind, double seconds) {
    CUresult result = prepare(kind);
    if (result == CUDA_SUCCESS) result = round(kind);  // the first is slower: code is loaded
    Line("busy").text("kind", kind).text("result", driver_.name_of(result)).print();
    std::vector<double> taken;
    const auto start = Clock::now();
    while (result == CUDA_SUCCESS && seconds_since(start) < seconds) {
      const auto began = Clock::now();
      result = round(kind);
      if (result == CUDA_SUCCESS) taken.push_back(seconds_since(began));
    }
    report(kind, result, taken, seconds_since(start));
    release();
  }

  void alive() {
    const auto start = Clock::now();
    CUresult result = prepare("short");
    if (result == CUDA_SUCCESS) result = round("short");
    Line("alive").text("result", driver_.name_of(result)).number("seconds", seconds_since(start)).print();
  }

  void fault() {
    CUdeviceptr nowhere = 0x1000;
    void* arguments[] = {&nowhere};
    CUresult result = launch("write_one", 1, 1, arguments);
    if (result == CUDA_SUCCESS) result = CALL(driver_, cuCtxSynchronize);
    Line("fault").text("result", driver_.name_of(result)).print();
  }

 private:
  static constexpr unsigned MATRIX = 1024, TILE = 16;
  static constexpr size_t COPY_BYTES = 256ull * 1024 * 1024;
  static constexpr unsigned long long SHORT_NANOSECONDS = 1000 * 1000;

  CUresult prepare(const std::string& kind) {
    const size_t size = kind == "copy" ? COPY_BYTES : kind == "matmul" ? MATRIX * MATRIX * sizeof(float) : 0;
    for (CUdeviceptr& buffer : buffers_) {
      if (size == 0) break;
      const CUresult result = CALL(driver_, cuMemAlloc, &buffer, size);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

  void release() {
    for (CUdeviceptr& buffer : buffers_) {
      if (buffer != 0) CALL(driver_, cuMemFree, buffer);
      buffer = 0;
    }
  }

  CUresult round(const std::string& kind) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (kind == "matmul") {
      void* arguments[] = {&buffers_[0], &buffers_[1], &buffers_[2]};
      result = launch("multiply", MATRIX / TILE, TILE, arguments);
    } else if (kind == "copy") {
      result = CALL(driver_, cuMemcpyDtoDAsync, buffers_[1], buffers_[0], COPY_BYTES, nullptr);
    } else if (kind == "short") {
      unsigned long long nanoseconds = SHORT_NANOSECONDS;
      void* arguments[] = {&nanoseconds};
      result = launch("spin", 2, TILE, arguments);
    }
    return result == CUDA_SUCCESS ? CALL(driver_, cuCtxSynchronize) : result;
  }

  // A square grid of square blocks.
  CUresult launch(const char* name, unsigned grid, unsigned block, void** arguments) {
    CUfunction kernel = nullptr;
    CUresult result = module_ == nullptr ? CALL(driver_, cuModuleLoad, &module_, kernels_.c_str()) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) result = CALL(driver_, cuModuleGetFunction, &kernel, module_, name);
    if (result != CUDA_SUCCESS) return result;
    return CALL(driver_, cuLaunchKernel, kernel, grid, grid, 1, block, block, 1, 0, nullptr, arguments, nullptr);
  }

  void report(const std::string& kind, CUresult result, std::vector<double>& taken, double seconds) {
    Line line("loop");
    line.text("kind", kind).text("result", driver_.name_of(result));
    line.count("rounds", taken.size()).number("seconds", seconds);
    if (!taken.empty()) {
      std::sort(taken.begin(), taken.end());
      line.number("rounds_per_second", static_cast<double>(taken.size()) / seconds);
      line.number("p50_seconds", taken[taken.size() / 2]);
      line.number("p99_seconds", taken[std::min(taken.size() - 1, taken.size() * 99 / 100)]);
    }
    line.print();
  }

  Driver& driver_;
  std::string kernels_;
  CUmodule module_ = nullptr;
  CUdeviceptr buffers_[3] = {0, 0, 0};
};
