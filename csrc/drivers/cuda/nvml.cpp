// SPDX-License-Identifier: Apache-2.0
#include "cuda/nvml.h"

#include <dlfcn.h>

#include <cstdlib>

#include "common/symbols.h"
#include "common/table.h"

namespace outboard::cuda {
namespace {

constexpr int kSuccess = 0, kGpuTemperature = 0, kSmClock = 1;  // of NVML's enumerations

}  // namespace

const Nvml* Nvml::get() {
  static const Nvml* const loaded = [] {
    auto* const made = new Nvml;  // leaked: it is the process's
    return made->load() ? made : nullptr;
  }();
  return loaded;
}

bool Nvml::load() {
  const char* const chosen = std::getenv("OUTBOARD_CUDA_NVML");
  void* const library = dlopen(chosen != nullptr ? chosen : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && common::find_symbol(library, "nvmlInit_v2", init_) &&
         common::find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", find_) &&
         common::find_symbol(library, "nvmlDeviceGetMemoryInfo", memory_) &&
         common::find_symbol(library, "nvmlDeviceGetUtilizationRates", utilization_) &&
         common::find_symbol(library, "nvmlDeviceGetTemperature", temperature_) &&
         common::find_symbol(library, "nvmlDeviceGetPowerUsage", power_) &&
         common::find_symbol(library, "nvmlDeviceGetClockInfo", clock_) && init_() == kSuccess;
}

ob_sensors Nvml::read(const std::string& bus_id) const {
  ob_sensors sensors = common::unknown_sensors();
  Device device = nullptr;
  if (find_(bus_id.c_str(), &device) != kSuccess) return sensors;
  Memory memory{};
  Utilization rates{};
  unsigned value = 0;
  if (memory_(device, &memory) == kSuccess) sensors.memory_used = static_cast<int64_t>(memory.used);
  if (utilization_(device, &rates) == kSuccess) {
    sensors.compute_busy = rates.gpu;
    sensors.memory_busy = rates.memory;
  }
  if (temperature_(device, kGpuTemperature, &value) == kSuccess) sensors.temperature = value;
  if (power_(device, &value) == kSuccess) sensors.power = value;
  if (clock_(device, kSmClock, &value) == kSuccess) sensors.clock = value;
  return sensors;
}

}  // namespace outboard::cuda
