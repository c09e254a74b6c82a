// One CUDA process that does what its arguments say, in their order, and prints one line of JSON for each.
//
//   probe ACTION [ARGUMENT...] [ACTION [ARGUMENT...]]...
//
//   info                          the device as this process sees it
//   alloc METHOD UPTO STEP        take memory in steps (MiB) until it is refused; malloc, async, vmm, managed
//   free                          give all of it back
//   share SIZE STEP FILE          take memory and leave handles of it in a file
//   import FILE                   open the memory of such a file
//   wait                          until a line comes on standard input, or its end
//   sleep SECONDS
//   loop KIND SECONDS             matmul, copy or short (kernels of a millisecond), every round timed
//   alive                         one kernel
//   fault                         a kernel that writes to an illegal address
//   checkpoint PHASE PID          lock, checkpoint, restore, unlock or state of another process
//
// A CUDA error is something seen: it is printed and the next action follows. Status 2: wrong arguments, 3: there is
// no driver, 4: the driver does not start or gives no context.
#include <unistd.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "driver.hpp"
#include "line.hpp"
#include "memory.hpp"
#include "work.hpp"

namespace {

const std::map<std::string, unsigned> ARGUMENTS = {
    {"info", 0}, {"alloc", 3}, {"free", 0},  {"share", 3}, {"import", 1},     {"wait", 0},
    {"sleep", 1}, {"loop", 2},  {"alive", 0}, {"fault", 0}, {"checkpoint", 2},
};

struct Refused {
  std::string why;
  std::string result;
};

class Probe {
 public:
  Probe(Driver& driver, std::string kernels) : driver_(driver), kernels_(std::move(kernels)) {}

  void perform(const std::string& action, const std::string* words) {
    if (action == "wait") {
      std::string line;
      std::getline(std::cin, line);
    } else if (action == "sleep") {
      usleep(static_cast<useconds_t>(std::stod(words[0]) * 1e6));
    } else if (action == "checkpoint") {
      checkpoint(driver_, words[0], std::stoi(words[1]));
    } else {
      open();
      on_device(action, words);
    }
  }

 private:
  void on_device(const std::string& action, const std::string* words) {
    if (action == "info") info();
    if (action == "alloc") memory_->alloc(words[0], std::stoul(words[1]), std::stoul(words[2]));
    if (action == "free") memory_->free_all();
    if (action == "share") memory_->share(std::stoul(words[0]), std::stoul(words[1]), words[2]);
    if (action == "import") memory_->import(words[0]);
    if (action == "loop") work_->loop(words[0], std::stod(words[1]));
    if (action == "alive") work_->alive();
    if (action == "fault") work_->fault();
  }

  void open() {
    if (memory_) return;
    const auto start = Clock::now();
    must("cuDeviceGet", CALL(driver_, cuDeviceGet, &device_, 0));
    CUcontext context = nullptr;
    must("cuDevicePrimaryCtxRetain", CALL(driver_, cuDevicePrimaryCtxRetain, &context, device_));
    must("cuCtxSetCurrent", CALL(driver_, cuCtxSetCurrent, context));
    context_seconds_ = seconds_since(start);
    memory_ = std::make_unique<Memory>(driver_, device_);
    work_ = std::make_unique<Work>(driver_, kernels_);
  }

  void must(const char* what, CUresult result) {
    if (result != CUDA_SUCCESS) throw Refused{what, driver_.name_of(result)};
  }

  void info() {
    char name[128] = "";
    CUuuid uuid{};
    int multiprocessors = 0, version = 0;
    CALL(driver_, cuDeviceGetName, name, sizeof name, device_);
    CALL(driver_, cuDeviceGetUuid, &uuid, device_);
    CALL(driver_, cuDriverGetVersion, &version);
    CALL(driver_, cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_);
    Line line("info");
    line.text("result", "CUDA_SUCCESS").text("device", name).text("uuid", text_of(uuid));
    line.count("sm_count", static_cast<unsigned>(multiprocessors)).count("cuda_version", static_cast<unsigned>(version));
    line.count("pid", static_cast<unsigned>(getpid())).count("uid", getuid());
    memory_->describe(line).number("context_seconds", context_seconds_).print();
  }

  static std::string text_of(const CUuuid& uuid) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
      char two[4];
      std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
      if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      text += two;
    }
    return text;
  }

  Driver& driver_;
  std::string kernels_;
  CUdevice device_ = 0;
  double context_seconds_ = 0;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Work> work_;
};

bool well_formed(const std::vector<std::string>& words) {
  for (size_t at = 0; at < words.size();) {
    const auto known = ARGUMENTS.find(words[at]);
    if (known == ARGUMENTS.end()) return false;
    at += 1 + known->second;
    if (at > words.size()) return false;
  }
  return !words.empty();
}

int failed(const char* why, const std::string& detail, int status) {
  Line("error").text("result", why).text("detail", detail).print();
  return status;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (!well_formed(words)) return failed("wrong arguments", "see the head of main.cpp", 2);
  Driver driver;
  if (const char* why = driver.load()) return failed("no driver", why, 3);
  if (const CUresult result = driver.cuInit(0)) return failed("cuInit", driver.name_of(result), 4);
  const std::string self = arguments[0];
  Probe probe(driver, self.substr(0, self.rfind('/') + 1) + "kernels.fatbin");
  try {
    for (size_t at = 0; at < words.size(); at += 1 + ARGUMENTS.at(words[at])) {
      probe.perform(words[at], words.data() + at + 1);
    }
  } catch (const Refused& refused) {
    return failed(refused.why.c_str(), refused.result, 4);
  } catch (const std::logic_error& error) {  // a number that is none
    return failed("wrong arguments", error.what(), 2);
  }
  return 0;
}
