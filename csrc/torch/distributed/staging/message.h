// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/distributed/staging/exchange.h"

namespace outboard::distributed {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Bytes of a rank's tensor, or of its part of one, that go in one piece. All ranks of a group have to agree on parts,
/// so nothing else decides on them, such as where a rank's tensor is.
constexpr uint64_t kWhole = uint64_t{4} << 20;
/// How many parts are on their way to the host while another one is exchanged, and how many on their way back.
constexpr size_t kAhead = 1;

/// Tags that programs may give to messages go up to this. Those from here to twice as much tell contents apart.
constexpr int kTags = 1 << 27;

/// Contents of a message: a tensor of the device, of which some bytes are brought to the host or back at a time.
struct Content {
  uint64_t bytes;
  /// A CPU tensor for the bytes from `begin` to `end`, which are the host's once the exchange has been waited for.
  /// Without an exchange they are so already. Parts of at most `kWhole` bytes are asked for, in order.
  struct Part {
    std::shared_ptr<Exchange> exchange;
    at::Tensor host;
  };
  std::function<Part(uint64_t begin, uint64_t end)> part;
};

/// A message between two ranks. First comes a header, which says how long the message is, and has short contents with
/// it; long ones follow in parts, under a tag of their own, when the receiver asks for them. So a receiver that expects
/// another length finds that out before anything is written, takes what was sent, and can go on.
class Message {
 public:
  virtual ~Message() = default;

  /// Begins it, in the order of messages. Does not wait.
  virtual void begin(c10d::Backend& host) = 0;
  /// Waits until it is sent, or there. Throws what failed; MismatchError for another length than expected.
  virtual void finish(c10d::Backend& host) = 0;
  /// Whether the other rank waits for what `finish` does.
  virtual bool is_to_be_watched() const = 0;
  /// Who sent it, once it is there.
  virtual int source() const = 0;
  /// Has `finish` throw, from any thread.
  void abort();

 protected:
  /// Waits for a work of the CPU backend's, unless the message is given up.
  void wait_for(const WorkPointer& work);

 private:
  std::mutex mutex_;
  bool aborted_ = false;   ///< guarded by mutex_
  WorkPointer under_way_;  ///< guarded by mutex_: what is waited for
};

/// `content_tag`: from `kTags` on, of no other message that this rank has under way.
std::unique_ptr<Message> outgoing_message(Content content, int target, int tag, int content_tag);
/// `source`: nothing for any.
std::unique_ptr<Message> incoming_message(Content content, std::optional<int> source, int tag);

}  // namespace outboard::distributed
