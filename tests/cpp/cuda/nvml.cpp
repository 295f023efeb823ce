// SPDX-License-Identifier: Apache-2.0
#include <cstring>

/// A simulator of the part of NVML that the CUDA driver uses, with sensors whose values say what they are of.
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kNotFound = 6, kNotSupported = 3;
int first, second;

}  // namespace

EXPORTED int nvmlInit_v2() { return kSuccess; }

EXPORTED int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (std::strcmp(bus_id, "0000:01:00.0") == 0) *device = &first;
  if (std::strcmp(bus_id, "0000:02:00.0") == 0) *device = &second;
  return *device == nullptr ? kNotFound : kSuccess;
}

EXPORTED int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  const unsigned long long values[] = {1 << 30, (1 << 30) - 12345, 12345};
  std::memcpy(total_free_used, values, sizeof(values));
  return kSuccess;
}

EXPORTED int nvmlDeviceGetUtilizationRates(void*, unsigned* gpu_memory) {
  gpu_memory[0] = 70;
  gpu_memory[1] = 30;
  return kSuccess;
}

EXPORTED int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 41;
  return sensor == 0 ? kSuccess : kNotSupported;
}

/// Only the first device has this sensor.
EXPORTED int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 155000;
  return device == &first ? kSuccess : kNotSupported;
}

EXPORTED int nvmlDeviceGetClockInfo(void*, int domain, unsigned* megahertz) {
  *megahertz = domain == 1 ? 1410 : 0;
  return kSuccess;
}
