// One line of JSON for each thing that was seen, written out at once.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

using Clock = std::chrono::steady_clock;

inline const Clock::time_point STARTED = Clock::now();

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Line {
 public:
  explicit Line(const std::string& action) { text("action", action); }

  Line& text(const char* key, const std::string& value) {
    std::string quoted = "\"";
    for (char letter : value) {
      if (letter == '"' || letter == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
    }
    return raw(key, quoted + "\"");
  }

  Line& number(const char* key, double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.6f", value);
    return raw(key, buffer);
  }

  Line& count(const char* key, unsigned long long value) { return raw(key, std::to_string(value)); }

  void print() {
    number("since_main_seconds", seconds_since(STARTED));
    std::printf("{%s}\n", fields_.c_str());
    std::fflush(stdout);
  }

 private:
  Line& raw(const char* key, const std::string& value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }

  std::string fields_;
};
