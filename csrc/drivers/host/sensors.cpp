// SPDX-License-Identifier: Apache-2.0
#include "host/sensors.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/host_memory.h"
#include "common/table.h"

namespace outboard::host {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThousand = 1000;  // the kernel tells millidegrees and kHz

template <typename Value>
bool read_file(const fs::path& path, Value& value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> value);
}

/// The temperature that a folder has in one file, if what another one holds is the name of a processor's sensor.
int64_t temperature_in(const fs::path& folder, const char* name_file, const char* value_file) {
  std::string name;
  int64_t value = 0;
  if (!read_file(folder / name_file, name)) return OB_NOT_KNOWN;
  bool is_processors = false;
  for (const char* known : {"x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu-thermal", "cpu_thermal"}) {
    is_processors = is_processors || name == known;
  }
  return is_processors && read_file(folder / value_file, value) ? value / kThousand : OB_NOT_KNOWN;
}

int64_t temperature() {
  struct Place {
    const char *folder, *name, *value;
  };
  for (const Place& place :
       {Place{"/sys/class/thermal", "type", "temp"}, Place{"/sys/class/hwmon", "name", "temp1_input"}}) {
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(place.folder, absent)) {
      const int64_t found = temperature_in(entry.path(), place.name, place.value);
      if (found != OB_NOT_KNOWN) return found;
    }
  }
  return OB_NOT_KNOWN;
}

/// Of the first processor.
int64_t megahertz() {
  int64_t khz = 0;
  if (read_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", khz)) return khz / kThousand;
  const std::string text = processor_text("cpu MHz");
  return text.empty() ? OB_NOT_KNOWN : std::atoll(text.c_str());
}

}  // namespace

std::string processor_text(const std::string& what) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind(what, 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

Sensors::Sensors() : last_(time()) {}

ob_sensors Sensors::read() {
  ob_sensors sensors = common::unknown_sensors();
  const common::HostMemory memory = common::HostMemory::now();
  if (memory.total != 0) sensors.memory_used = static_cast<int64_t>(memory.total - memory.available);
  sensors.compute_busy = busy();
  sensors.temperature = temperature();
  sensors.clock = megahertz();
  return sensors;
}

/// The fields of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Nothing there: zeros.
Sensors::Time Sensors::time() {
  constexpr int kFields = 8, kIdle = 3, kWaiting = 4;
  std::ifstream file("/proc/stat");
  std::string cpu;
  file >> cpu;
  Time time;
  for (int i = 0; i < kFields; ++i) {
    int64_t ticks = 0;
    if (!(file >> ticks)) return {};
    time.all += ticks;
    if (i != kIdle && i != kWaiting) time.busy += ticks;
  }
  return time;
}

int64_t Sensors::busy() {
  const Time now = time();
  if (now.all == 0) return OB_NOT_KNOWN;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (now.all <= last_.all) return percent_;  // not a tick later
  percent_ = 100 * (now.busy - last_.busy) / (now.all - last_.all);
  last_ = now;
  return percent_;
}

}  // namespace outboard::host
