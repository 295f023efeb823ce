// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "runtime/streams/stream.h"

/// Collectives of torch.distributed on tensors of the device, by a CPU backend that takes CPU tensors.
namespace outboard::distributed {

/// The stream as PyTorch knows it.
c10::Stream torch_stream(const Stream& stream);

/// What a collective does with a tensor.
enum class Intent { kRead, kWrite, kReadWrite };

/// The tensors of one collective as the CPU backend takes them. Where the host can address the device's memory they
/// are that memory, which stays in place; elsewhere they are page-locked copies, which a stream beside the current one
/// fetches and brings back.
class Exchange {
 public:
  /// Which of a collective's copies it makes.
  enum class Role {
    kAll,   ///< behind what the current stream has to do at the call
    kNone,  ///< those of parts are made by others, once that is done
    kPart,  ///< behind nothing else
  };

  /// On the calling thread's current device. `transfers`: the stream for copies.
  explicit Exchange(Stream& transfers, Role role = Role::kAll);

  /// A CPU tensor for the contents of `tensor`, which may be used once `wait` has returned. Throws c10::ValueError if
  /// the tensor is on another device or has gaps.
  at::Tensor numbers(const at::Tensor& tensor, Intent intent);
  /// The same for collectives that only move elements, with elements of a dtype that every library knows: dtypes of one
  /// size look alike, and a complex double is a last dimension of two. Dimension 0 is the tensor's own.
  at::Tensor elements(const at::Tensor& tensor, Intent intent);
  std::vector<at::Tensor> numbers(const std::vector<at::Tensor>& tensors, Intent intent);
  std::vector<at::Tensor> elements(const std::vector<at::Tensor>& tensors, Intent intent);

  /// Ends the list of tensors: what is queued for the device so far comes before the collective.
  void seal();
  /// Whether the host may begin. Throws what failed on the device.
  bool ready();
  /// Waits until it may. Throws what failed on the device, and no assertion: these are for the program's own waits.
  void wait();

  /// After the collective: queues the copies to the device.
  void give_back();
  /// The same where parts were copied on another stream.
  void give_back_behind(Stream& parts);
  /// Waits until the copies to the device are made, and their memory may be used again.
  void wait_until_given_back();
  /// Has work that is queued from now on the current stream wait for these copies.
  void order_current_stream() const;

  Stream& transfers() const { return transfers_; }
  /// The caller's.
  Stream& current() const { return current_; }

 private:
  struct Copied {
    at::Tensor tensor;
    at::Tensor host;
  };

  at::Tensor fetched(const at::Tensor& tensor, Intent intent);
  void record_return();

  Stream& transfers_;
  const Role role_;
  Stream& current_;
  std::unique_ptr<Event> begun_;
  std::unique_ptr<Event> returned_;
  std::vector<Copied> copied_;  ///< what was written and is not the device's own memory
};

}  // namespace outboard::distributed
