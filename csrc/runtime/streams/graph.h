// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "outboard/driver.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/launch.h"

namespace outboard {

class Allocation;
class Device;
class LibraryWork;
class Stream;

/// Draws seeds from a generator.
using SeedSource = std::function<void(int64_t* seeds, int64_t count)>;

/// Puts seeds on the device, as fills, whose pattern is read during the call: no host memory has to outlive it.
void fill_seeds(Stream& stream, ob_ptr to, const int64_t* seeds, int64_t count);

/// Commands of a stream, kept to be submitted any number of times. Thread-safe.
class Recording {
 public:
  /// `results_apart`: memory of tensors made while recording is not taken from the graph's own (see Graph::begin).
  explicit Recording(bool results_apart) : results_apart_(results_apart) {}
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void launch(const Launch& launch);
  void call(std::shared_ptr<const LibraryWork> work);
  void copy(ob_ptr dst, ob_ptr src, uint64_t bytes);
  void fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes);
  /// `count` int64 seeds at `dst`, new ones each time.
  void seeds(ob_ptr dst, int64_t count, SeedSource source);
  /// Some command may fail assertions.
  void expect_assertions();
  /// Keeps an allocation that a command uses alive and where it is. Under the device's memory lock.
  void keep(Allocation& allocation);

  bool results_apart() const { return results_apart_; }

  /// Gives launches that follow one another to the driver as graphs of its own, if it has such; once. The recording is
  /// complete.
  void bake(Device& device);
  void replay(Stream& stream) const;
  /// One line per command.
  std::string text() const;

 private:
  struct Copy {
    ob_ptr dst, src;
    uint64_t bytes;
  };
  struct Fill {
    ob_ptr dst;
    std::vector<uint8_t> pattern;
    uint64_t bytes;
  };
  struct Seeds {
    ob_ptr dst;
    int64_t count;
    SeedSource source;
  };
  using Call = std::shared_ptr<const LibraryWork>;
  using Command = std::variant<Launch, Call, Copy, Fill, Seeds>;

  /// Launches that the driver holds as one graph: commands `first` to before `end`.
  struct Baked {
    size_t first, end;
    void* graph;
  };

  void* bake(Device& device, size_t first, size_t end) const;

  class Replay;

  const bool results_apart_;
  mutable std::mutex mutex_;
  std::vector<Command> commands_;
  std::vector<KernelUse> kernels_;  // of the launches
  std::set<Allocation*> kept_;
  bool asserts_ = false;
  const ob_driver* driver_ = nullptr;  // of `baked_`; null before `bake`
  std::vector<Baked> baked_;           // in order
};

/// Work captured once and replayed: as CUDA's graphs, for any driver.
///
/// Capturing gives the caller a stream of its own. What is submitted to it is recorded instead of run; memory taken for
/// that comes from that stream's part of the allocator, which is used for nothing else while the graph lives, so that
/// addresses stay right. Allocations from elsewhere are kept alive and in place.
class Graph {
 public:
  explicit Graph(Device& device) : device_(device) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Device& device() const { return device_; }
  /// The stream to submit to until `end`. Work runs later where `origin` is. `pool`: the id of a living graph's stream
  /// to share memory with, or 0; graphs that share must be replayed in the order of their capture, one at a time.
  /// `results_apart`: memory of what becomes a tensor is taken from `origin` instead, and stays taken while the graph
  /// lives. No replay of a graph that shares memory with this one writes to it, so that their order is free.
  /// Throws Error(OB_INVALID_ARGUMENT) if there is no such graph, it captures, or this graph is not empty.
  Stream& begin(Stream& origin, int64_t pool, bool results_apart = false);
  /// Throws Error(OB_INVALID_ARGUMENT) if nothing is being captured.
  void end();
  /// Submits the work again, on `stream`, behind the replay before. Throws Error(OB_INVALID_ARGUMENT) if nothing was
  /// captured.
  void replay(Stream& stream);
  /// Forgets what was captured.
  void reset();
  bool capturing() const { return capturing_; }
  /// For `begin`; 0 if there is nothing.
  int64_t pool() const;
  std::string text() const;

 private:
  Device& device_;
  std::shared_ptr<Stream> stream_;
  std::unique_ptr<Recording> recording_;
  bool capturing_ = false;
};

}  // namespace outboard
