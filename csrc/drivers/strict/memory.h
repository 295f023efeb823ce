// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "outboard/driver.h"

namespace outboard::strict {

/// One allocation. Its address is nobody's memory: reading it faults.
struct Block {
  ob_ptr address;
  uint64_t bytes;
  ob_ptr inner;  // where the wrapped driver has byte 0: behind a red zone
  ob_ptr inner_base;
  std::atomic<int64_t> uses{0};  // commands that are not finished
};

/// Part of a block that a command uses, for as long as the object lives.
class BlockUse {
 public:
  BlockUse() = default;
  BlockUse(std::shared_ptr<Block> block, uint64_t offset) : block_(std::move(block)), offset_(offset) {
    ++block_->uses;
  }
  ~BlockUse() {
    if (block_ != nullptr) --block_->uses;
  }
  BlockUse(BlockUse&& other) noexcept : block_(std::move(other.block_)), offset_(other.offset_) {}
  BlockUse& operator=(BlockUse&&) = delete;

  explicit operator bool() const { return block_ != nullptr; }
  /// The address for the wrapped driver.
  ob_ptr inner() const { return block_->inner + offset_; }

 private:
  std::shared_ptr<Block> block_;
  uint64_t offset_ = 0;
};

/// A queue of the wrapped driver's for what is not a user's work, whose commands are waited for one by one.
class Service {
 public:
  Service(const ob_driver& inner, ob_device device) : inner_(inner), device_(device) {}

  ob_status copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes);
  ob_status fill(ob_ptr dst, unsigned char byte, uint64_t bytes);

 private:
  ob_status ready();

  const ob_driver& inner_;
  ob_device device_;
  std::mutex mutex_;
  ob_stream stream_ = nullptr;
};

/// The memory of one device: addresses of its own, red zones around what the wrapped driver allocates, new memory full
/// of 0xFF bytes (which are NaN, and -1).
class Memory {
 public:
  Memory(const ob_driver& inner, ob_device device, const ob_device_properties& limits);

  ob_status alloc(uint64_t bytes, ob_ptr* address);
  ob_status free(ob_ptr address);
  /// All of it, once no command uses any. No command begins any more.
  ob_status free_all();
  /// `bytes` at `address`; false if they are not inside one allocation.
  BlockUse use(ob_ptr address, uint64_t bytes);
  uint64_t used();
  Service& service() { return service_; }

 private:
  ob_ptr take_address(uint64_t bytes);
  bool zones_are_intact(const Block& block);

  const ob_driver& inner_;
  ob_device device_;
  const uint64_t total_, largest_, alignment_;
  Service service_;
  std::mutex mutex_;
  std::map<ob_ptr, std::shared_ptr<Block>> blocks_;
  ob_ptr base_ = 0, next_ = 0;
  uint64_t space_ = 0;  // addresses from there on
  uint64_t used_ = 0;
};

}  // namespace outboard::strict
