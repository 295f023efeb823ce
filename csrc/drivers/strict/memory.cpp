// SPDX-License-Identifier: Apache-2.0
#include "strict/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "strict/violations.h"

namespace outboard::strict {
namespace {

constexpr uint64_t kMostSpace = uint64_t{1} << 41;   // addresses of a device
constexpr uint64_t kLeastSpace = uint64_t{1} << 36;  // beside a sanitizer, which has the rest
constexpr uint64_t kGap = uint64_t{64} << 10;        // at least, between two blocks
constexpr unsigned char kZone = 0xA5, kNew = 0xFF;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

ob_status Service::ready() { return stream_ != nullptr ? OB_OK : inner_.stream_create(device_, &stream_); }

ob_status Service::copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  ob_status status = ready();
  if (status == OB_OK) status = inner_.copy(stream_, kind, dst, src, bytes);
  if (status == OB_OK) status = inner_.stream_wait(stream_, 1);
  return status == OB_OK ? OB_OK : fail(status, inner_.last_error());
}

ob_status Service::fill(ob_ptr dst, unsigned char byte, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  ob_status status = ready();
  if (status == OB_OK) status = inner_.fill(stream_, dst, &byte, 1, bytes);
  if (status == OB_OK) status = inner_.stream_wait(stream_, 1);
  return status == OB_OK ? OB_OK : fail(status, inner_.last_error());
}

Memory::Memory(const ob_driver& inner, ob_device device, const ob_device_properties& limits)
    : inner_(inner),
      device_(device),
      total_(limits.total_memory),
      largest_(limits.max_allocation),
      alignment_(std::max<uint64_t>(limits.alignment, 1)),
      service_(inner, device) {
  for (space_ = kMostSpace; space_ >= kLeastSpace; space_ /= 2) {
    void* space = mmap(nullptr, space_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) continue;
    base_ = next_ = reinterpret_cast<ob_ptr>(space);
    return;
  }
}

/// Addresses aligned to `alignment` and no more. They are used again as late as can be: what uses freed memory finds
/// none.
ob_ptr Memory::take_address(uint64_t bytes) {
  const uint64_t unit = 2 * alignment_;
  for (int rounds = 0; rounds < 2; ++rounds, next_ = base_) {
    while (next_ + bytes + 2 * kGap + unit < base_ + space_) {
      const ob_ptr address = round_up(next_ + kGap, unit) + alignment_;
      const auto after = blocks_.upper_bound(address + bytes + kGap);
      const Block* before = after == blocks_.begin() ? nullptr : std::prev(after)->second.get();
      next_ = address + bytes;
      if (before == nullptr || before->address + before->bytes + kGap <= address) return address;
      next_ = before->address + before->bytes;
    }
  }
  return 0;
}

ob_status Memory::alloc(uint64_t bytes, ob_ptr* address) {
  if (base_ == 0) return fail(OB_OUT_OF_MEMORY, "the host has no addresses for a device's memory");
  if (bytes == 0) return violation("an allocation of 0 bytes");
  if (bytes > largest_) {
    return violation("an allocation of " + std::to_string(bytes) + " bytes, of at most " + std::to_string(largest_));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > total_ - used_) return fail(OB_OUT_OF_MEMORY, "the device's memory is used up");
  const auto block = std::make_shared<Block>();
  const ob_status status = inner_.memory_alloc(device_, bytes + 2 * alignment_, &block->inner_base);
  if (status != OB_OK) return fail(status, inner_.last_error());
  block->inner = block->inner_base + alignment_;
  block->bytes = bytes;
  block->address = take_address(bytes);
  ob_status filled = block->address != 0 ? OB_OK : fail(OB_OUT_OF_MEMORY, "no addresses are left");
  if (filled == OB_OK) filled = service_.fill(block->inner_base, kZone, alignment_);
  if (filled == OB_OK) filled = service_.fill(block->inner, kNew, bytes);
  if (filled == OB_OK) filled = service_.fill(block->inner + bytes, kZone, alignment_);
  if (filled != OB_OK) {
    inner_.memory_free(device_, block->inner_base);
    return filled;
  }
  used_ += bytes;
  *address = block->address;
  blocks_.emplace(block->address, block);
  return OB_OK;
}

bool Memory::zones_are_intact(const Block& block) {
  for (const ob_ptr zone : {block.inner_base, block.inner + block.bytes}) {
    std::vector<unsigned char> bytes(alignment_);
    if (service_.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(bytes.data()), zone, alignment_) != OB_OK) continue;
    if (std::any_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte != kZone; })) return false;
  }
  return true;
}

ob_status Memory::free(ob_ptr address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return violation("memory_free of an address that no allocation begins at");
  const std::shared_ptr<Block> block = found->second;
  if (block->uses != 0) return violation("memory_free of memory that queued work still uses");
  blocks_.erase(found);
  used_ -= block->bytes;
  if (!zones_are_intact(*block)) {
    violation("a kernel wrote outside of an allocation of " + std::to_string(block->bytes) + " bytes");
  }
  const ob_status status = inner_.memory_free(device_, block->inner_base);
  return status == OB_OK ? OB_OK : fail(status, inner_.last_error());
}

ob_status Memory::free_all() {
  std::map<ob_ptr, std::shared_ptr<Block>> blocks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(blocks_);
    used_ = 0;
  }
  ob_status status = OB_OK;
  for (const auto& [address, block] : blocks) {
    while (block->uses != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const ob_status freed = inner_.memory_free(device_, block->inner_base);
    if (freed != OB_OK) status = fail(freed, inner_.last_error());
  }
  return status;
}

BlockUse Memory::use(ob_ptr address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return {};
  const std::shared_ptr<Block>& block = std::prev(next)->second;
  const uint64_t offset = address - block->address;
  if (offset > block->bytes || bytes > block->bytes - offset) return {};
  return {block, offset};
}

uint64_t Memory::used() {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

}  // namespace outboard::strict
