// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

#include "runtime/plans/executor.h"

namespace outboard::aten {

/// A counter-based generator: a seed and the number of seeds drawn so far. Each draw hands the device one 64-bit
/// seed, from which its kernels make as many numbers as they need, so the host never sees the numbers.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  /// Takes a seed from the system's entropy and returns it.
  uint64_t seed() override;
  /// A CPU byte tensor of 16 bytes: seed, offset (both little-endian uint64).
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// Fills `seeds` and moves the offset. The caller holds `mutex_`.
  void draw(int64_t* seeds, int64_t count);

 private:
  DeviceGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

/// The seed with which default generators begin that are not made yet.
void seed_devices_to_come(uint64_t seed);

/// The default generator of a device (-1: the current one). Throws c10::Error if there is no such device.
const at::Generator& default_generator(c10::DeviceIndex index);

/// The next `count` seeds of the generator of a device (its default one if `generator` is empty).
void next_seeds(const std::optional<at::Generator>& generator, c10::DeviceIndex device, int64_t* seeds, int64_t count);
/// The same as a function that outlives the call, for graphs.
SeedSource seeds_of(const std::optional<at::Generator>& generator, c10::DeviceIndex device);

}  // namespace outboard::aten
