// The phases of a checkpoint of another process.
#pragma once

#include <cstring>
#include <string>

#include "driver.hpp"
#include "line.hpp"

inline CUresult checkpoint_phase(Driver& driver, const std::string& phase, int pid, int& state) {
#if CUDA_VERSION >= 12080
  if (phase == "lock") {
    CUcheckpointLockArgs arguments;
    std::memset(&arguments, 0, sizeof arguments);
    arguments.timeoutMs = 10000;
    return CALL(driver, cuCheckpointProcessLock, pid, &arguments);
  }
  if (phase == "checkpoint") return CALL(driver, cuCheckpointProcessCheckpoint, pid, nullptr);
  if (phase == "restore") return CALL(driver, cuCheckpointProcessRestore, pid, nullptr);
  if (phase == "unlock") return CALL(driver, cuCheckpointProcessUnlock, pid, nullptr);
  if (phase == "state") {
    CUprocessState found = CU_PROCESS_STATE_FAILED;
    const CUresult result = CALL(driver, cuCheckpointProcessGetState, pid, &found);
    state = static_cast<int>(found);
    return result;
  }
  return CUDA_ERROR_INVALID_VALUE;
#else
  (void)driver, (void)phase, (void)pid, (void)state;
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

inline void checkpoint(Driver& driver, const std::string& phase, int pid) {
  const auto start = Clock::now();
  int state = -1;
  const CUresult result = checkpoint_phase(driver, phase, pid, state);
  Line line("checkpoint");
  line.text("phase", phase).text("result", driver.name_of(result)).number("seconds", seconds_since(start));
  if (state >= 0) line.count("state", static_cast<unsigned>(state));
  line.print();
}
