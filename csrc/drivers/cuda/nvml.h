// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "outboard/driver.h"

namespace outboard::cuda {

/// The sensors that NVIDIA's management library (NVML, "nvidia-smi") reads, which the NVIDIA driver brings.
class Nvml {
 public:
  /// The library, loaded when it is first asked for; nullptr if there is none, or it does not start.
  /// OUTBOARD_CUDA_NVML names another file than libnvidia-ml.so.1.
  static const Nvml* get();

  /// What it says of the device at an address of the bus, "0000:41:00.0".
  ob_sensors read(const std::string& bus_id) const;

 private:
  using Device = struct NvmlDevice*;
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned gpu, memory;
  };

  bool load();

  int (*init_)() = nullptr;
  int (*find_)(const char* bus_id, Device* device) = nullptr;
  int (*memory_)(Device device, Memory* memory) = nullptr;
  int (*utilization_)(Device device, Utilization* rates) = nullptr;
  int (*temperature_)(Device device, int sensor, unsigned* celsius) = nullptr;
  int (*power_)(Device device, unsigned* milliwatts) = nullptr;
  int (*clock_)(Device device, int domain, unsigned* megahertz) = nullptr;
};

}  // namespace outboard::cuda
