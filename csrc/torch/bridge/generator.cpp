// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/generator.h"

#include <ATen/Utils.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

/// Finaliser of SplitMix64: a bijection that turns consecutive inputs into statistically independent outputs.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// What the generators of devices that nobody used yet begin with, if somebody said it.
struct {
  std::mutex mutex;
  std::optional<uint64_t> value;
} first_seed;

}  // namespace

DeviceGenerator::DeviceGenerator(c10::DeviceIndex index)
    : c10::GeneratorImpl(torch_device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void DeviceGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t DeviceGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void DeviceGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK(new_state.numel() == kStateBytes, "RNG state is wrong size: expected ", kStateBytes, " bytes, got ",
              new_state.numel());
  const auto* bytes = new_state.data_dtype_initialized<uint8_t>();
  std::memcpy(&seed_, bytes, sizeof(seed_));
  std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
}

c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  at::Tensor state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* bytes = state.data_ptr<uint8_t>();
  std::memcpy(bytes, &seed_, sizeof(seed_));
  std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

void DeviceGenerator::draw(int64_t* seeds, int64_t count) {
  const uint64_t key = mix(seed_);
  for (int64_t i = 0; i < count; ++i) seeds[i] = static_cast<int64_t>(mix(key + offset_++));
}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* copy = new DeviceGenerator(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

void seed_devices_to_come(uint64_t seed) {
  std::lock_guard lock(first_seed.mutex);
  first_seed.value = seed;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* const generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) made->push_back(at::make_generator<DeviceGenerator>(i));
    std::lock_guard lock(first_seed.mutex);
    for (at::Generator& each : *made) {
      if (first_seed.value) each.set_current_seed(*first_seed.value);
    }
    return made;
  }();
  return generators->at(device(index).index());
}

void next_seeds(const std::optional<at::Generator>& generator, c10::DeviceIndex device, int64_t* seeds, int64_t count) {
  auto* impl = at::get_generator_or_default<DeviceGenerator>(generator, default_generator(device));
  TORCH_CHECK(impl->device().index() == device, "Expected a generator on ", torch_device(device), " but found one on ",
              impl->device());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  impl->draw(seeds, count);
}

SeedSource seeds_of(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  return [generator, device](int64_t* seeds, int64_t count) { next_seeds(generator, device, seeds, count); };
}

}  // namespace outboard::aten
