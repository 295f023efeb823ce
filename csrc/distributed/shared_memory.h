// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "distributed/process.h"

/// Collectives between processes of one machine.
namespace outboard::distributed {

/// The group cannot go on: a rank is gone, gave up, or did not come in time.
struct TransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ranks called different collectives. All of them are told, and the group goes on.
struct MismatchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What tells ranks that they called different collectives: a text of each.
std::string unlike_calls(const std::vector<std::string>& terms);
/// What tells that two ranks do not agree on bytes in an all_to_all, or nothing. `sent` and `received` have a row of
/// each rank, with its bytes to or from each.
std::string unlike_bytes(const std::vector<std::vector<uint64_t>>& sent,
                         const std::vector<std::vector<uint64_t>>& received);

/// Where a group's memory is: plain bytes, for its ranks.
struct SharedMemoryPlace {
  uint64_t nonce;  ///< 0: there is none
  ProcessIdentity owner;
  int32_t file;  ///< a file descriptor of the owner
  int32_t ranks;
  uint64_t capacity;
};

/// What a rank asks for.
struct Terms {
  /// Kind, dtype, counts: what all ranks must agree on.
  std::string text;
  std::chrono::milliseconds timeout;
};

/// result[i] = a[i] op b[i]; `result` may be `a`.
struct Combination {
  void (*apply)(const void* a, const void* b, void* result, size_t count);
  size_t item;  ///< bytes of an element
};

/// Memory that the ranks of a group share, in which each has two halves of a buffer of its own. A collective is a
/// sequence of steps. In each, every rank writes to one of its halves, waits until all have, and reads what it needs
/// from the others'. The next step takes the other half, so nobody waits for readers. Waiting ranks spin for some
/// microseconds and sleep then. One thread at a time may call a collective; all ranks call the same in the same order.
///
/// Collectives throw MismatchError, or TransportError, after which the group is of no use, or what an interruption
/// throws.
class SharedMemory {
 public:
  /// Bytes of a half.
  static constexpr size_t kCapacity = size_t{1} << 20;

  /// For rank 0 of two or more. Null where the system has no such memory.
  static std::unique_ptr<SharedMemory> create(int ranks, size_t capacity = kCapacity);
  /// For the other ranks. Null where the memory cannot be reached from this process.
  static std::unique_ptr<SharedMemory> attach(const SharedMemoryPlace& place, int rank);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const SharedMemoryPlace& place() const { return place_; }
  /// All have attached: nobody else can from now on.
  void seal();

  void barrier(const Terms& terms);
  void broadcast(const Terms& terms, void* data, size_t bytes, int root);
  /// The same bits on all ranks: each part is combined by one of them, in the order of the ranks.
  void all_reduce(const Terms& terms, void* data, size_t count, const Combination& combination);
  /// `data` is written on the rank `root` alone.
  void reduce(const Terms& terms, void* data, size_t count, const Combination& combination, int root);
  /// `outputs`: a place of so many bytes for each rank.
  void all_gather(const Terms& terms, const void* input, const std::vector<void*>& outputs, size_t bytes);
  /// Bytes to and from each rank, which lie one after the other.
  void all_to_all(const Terms& terms, const void* input, const std::vector<uint64_t>& sent, void* output,
                  const std::vector<uint64_t>& received);

  /// Ends this rank's collective, and what others wait for, with an error. From any thread.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  struct Control;
  struct Half;

  SharedMemory(const SharedMemoryPlace& place, void* memory, int rank, int file);

  Control& control(int rank) const;
  Half& half(int rank, uint32_t step) const;
  /// This rank's half for the next step.
  char* writable() const;
  /// A rank's half of the last step.
  const char* readable(int rank) const;

  /// Calls `body` between the checks that each collective needs.
  void collective(const Terms& terms, const std::function<void()>& body);
  /// The end of writing and the begin of reading.
  void step();
  /// The same for the first step of a collective. Throws MismatchError.
  void first_step();
  void await(int rank);
  void give_up(uint32_t state);
  void require_alive(int rank) const;
  void require_agreement() const;
  void reduce_for(const Terms& terms, char* data, size_t count, const Combination& combination, bool wanted);
  void reduce_whole(char* data, size_t count, const Combination& combination, bool wanted);
  void reduce_chunk(char* data, size_t count, const Combination& combination, bool wanted, bool first);
  void exchange(const char* input, const std::vector<uint64_t>& sent, char* output,
                const std::vector<uint64_t>& received, uint64_t largest);

  const SharedMemoryPlace place_;
  char* const memory_;
  const int rank_;
  const int ranks_;
  const bool spins_;
  int file_;
  uint32_t step_ = 0;  ///< of this rank
  const Terms* terms_ = nullptr;
  Clock::time_point deadline_;
  std::string failure_;  ///< why the group is of no use
  std::atomic<bool> aborted_{false};
};

}  // namespace outboard::distributed
