// SPDX-License-Identifier: Apache-2.0
#include "sim/clock.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace outboard::sim {
namespace {

constexpr const char* kEngineNames[] = {"compute", "upload", "download", "link"};

std::string stripped(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// Whether the text is one number of TOML, with a comment perhaps.
bool is_number(const std::string& text, double& number) {
  std::string plain = stripped(text.substr(0, text.find('#')));
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  if (plain == "true") plain = "1";
  char* end = nullptr;
  number = std::strtod(plain.c_str(), &end);
  return !plain.empty() && *end == '\0';
}

/// "convolution" of "\"aten::convolution\"".
std::string operator_of(std::string key) {
  key.erase(std::remove_if(key.begin(), key.end(), [](char each) { return each == '"' || each == '\''; }), key.end());
  const size_t colon = key.rfind(':');
  return colon == std::string::npos ? key : key.substr(colon + 1);
}

}  // namespace

Chip::Chip(const std::string& path) : name("simulated device") {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument("OUTBOARD_SIM_CHIP: " + path + " cannot be read");
  std::string table, text;
  for (std::string line; std::getline(file, line);) {
    line = stripped(line);
    text += line + '\n';
    if (!line.empty() && line[0] == '[') table = line.substr(1, line.find(']') - 1);
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line[0] == '#' || line[0] == '[') continue;
    const std::string key = stripped(line.substr(0, equals)), value = stripped(line.substr(equals + 1));
    double number = 0;
    if (is_number(value, number)) {
      if (table == "efficiency") {
        efficiency[operator_of(key)] = number;
      } else {
        (table == "flops" ? flops : numbers)[key] = number;
      }
    } else if (table.empty() && key == "name" && value.size() > 1) {
      name = value.substr(1, value.find_last_of(value[0]) - 1);
    }
  }
  key = std::to_string(std::hash<std::string>()(text));
  if (flops.count("float32") == 0 || numbers.count("bandwidth") == 0) {
    throw std::invalid_argument("OUTBOARD_SIM_CHIP: " + path + " has no bandwidth, or no float32 in [flops]");
  }
}

double Chip::number(const std::string& key, double otherwise) const {
  const auto found = numbers.find(key);
  return found == numbers.end() ? otherwise : found->second;
}

double Chip::seconds(const Step& step) const {
  const auto found = flops.find(step.dtype);
  const double peak = found == flops.end() ? flops.at("float32") : found->second;
  const double moved = static_cast<double>(step.read + step.written);
  return number("latency", 0) + std::max(step.flops / (peak * reached(step)), moved / number("bandwidth", INFINITY));
}

double Chip::reached(const Step& step) const {
  std::istringstream operators(step.name);
  for (std::string each; operators >> each;) {  // with a "+" between them
    const auto found = efficiency.find(each);
    if (found != efficiency.end()) return found->second;
  }
  return 1;
}

const Chip* chosen_chip() {
  const char* path = std::getenv("OUTBOARD_SIM_CHIP");
  if (path == nullptr || *path == '\0') return nullptr;
  static const auto* const chip = new Chip(path);
  return chip;
}

int64_t Clock::put(uint32_t device, Engine engine, int64_t after, double seconds, const Step& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t& free = free_[device][engine];
  const int64_t begin = std::max({free, host_, after});
  free = begin + std::llround(seconds * 1e9);
  if (engine == kCompute) computed_[device] += free - begin;
  char flops[40];
  std::snprintf(flops, sizeof(flops), "%.0f", what.flops);
  for (const std::string& word :
       {std::to_string(device), std::string(kEngineNames[engine]), std::to_string(begin), std::to_string(free),
        what.dtype, std::string(flops), std::to_string(what.read), std::to_string(what.written)}) {
    log_ += word + "\t";
  }
  log_ += what.name + "\n";
  return free;
}

void Clock::wait_until(int64_t time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  host_ = std::max(host_, time);
}

void Clock::use(uint32_t device, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_[device] = bytes;
  note_memory(device);
}

void Clock::note_memory(uint32_t device) {
  log_ += std::to_string(device) + "\tmemory\t" + std::to_string(host_) + "\t" + std::to_string(used_[device]) + "\n";
}

std::string Clock::log() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

void Clock::forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.clear();
  for (const auto& [device, bytes] : used_) note_memory(device);
}

int64_t Clock::busy(uint32_t device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t computed = computed_[device];
  Seen& seen = seen_[device];
  if (host_ > seen.time) {
    const int64_t percent = 100 * (computed - seen.computed) / (host_ - seen.time);
    seen = {computed, host_, std::min<int64_t>(percent, 100)};
  }
  return seen.percent;
}

Clock& model_clock() {
  static auto* const clock = new Clock;
  return *clock;
}

}  // namespace outboard::sim
