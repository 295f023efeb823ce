// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

/// The simulator's modelled time: what its events show if OUTBOARD_SIM_CHIP names a file with a chip's numbers.
namespace outboard::sim {

/// Operators that run as one, as `outboard.simulation` counts them.
struct Step {
  std::string name, dtype = "float32";
  double flops = 0;
  uint64_t read = 0, written = 0;
};

/// A chip as outboard.Chip has it (src/outboard/simulation/chip.py); bytes and seconds.
struct Chip {
  /// Reads lines `key = value` of TOML, and the tables `flops` and `efficiency`. Throws std::invalid_argument without a
  /// file, or for a number that is none. `true` is 1.
  explicit Chip(const std::string& path);

  double seconds(const Step& step) const;

  std::string name;
  std::string key;                           // another for another text of the file
  std::map<std::string, double> flops;       // by dtype, with float32
  std::map<std::string, double> efficiency;  // by operator ("convolution"), the part of flops that it reaches
  std::map<std::string, double> numbers;
  /// One of `numbers`, or what it is if the file does not say.
  double number(const std::string& key, double otherwise) const;

 private:
  /// The part of its flops that a step's products reach: of its first operator that `efficiency` has.
  double reached(const Step& step) const;
};

/// The chip that the environment names; nullptr: time is the host's. Throws what Chip does, each time.
const Chip* chosen_chip();

enum Engine : uint32_t { kCompute = 0, kUpload, kDownload, kLink, kEngines };

/// Time of all devices, in nanoseconds since the first call. Submitting takes none, and the host's own time is that of
/// the work it has waited for.
class Clock {
 public:
  /// Work of a device's engine, which begins when the engine is free, the host is there and `after` is over. When it
  /// ends.
  int64_t put(uint32_t device, Engine engine, int64_t after, double seconds, const Step& what);
  /// The host has waited until then.
  void wait_until(int64_t time);
  /// A device has so many bytes in use from now on.
  void use(uint32_t device, uint64_t bytes);
  /// A line for each work and each change of memory: device, engine, begin, end, dtype, flops, read, written, name; and
  /// device, "memory", time, bytes. Separated by tabs.
  std::string log();
  void forget();
  /// Percent of the time since this was asked last in which a device computed.
  int64_t busy(uint32_t device);

 private:
  void note_memory(uint32_t device);

  /// How long a device has computed in all, until when, as `busy` saw it last, and what it said.
  struct Seen {
    int64_t computed = 0, time = 0, percent = 0;
  };

  std::mutex mutex_;
  std::map<uint32_t, std::array<int64_t, kEngines>> free_;
  std::map<uint32_t, uint64_t> used_;
  std::map<uint32_t, int64_t> computed_;  // how long
  std::map<uint32_t, Seen> seen_;
  int64_t host_ = 0;
  std::string log_;
};

Clock& model_clock();

}  // namespace outboard::sim
