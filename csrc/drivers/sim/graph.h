// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "outboard/driver.h"
#include "sim/clock.h"

/// The simulator's graph tier: executables that `outboard.compilers.sim` makes, and what runs them.
namespace outboard::sim {

/// An index that is outside of its dimension.
struct WrongIndex : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another value that PyTorch refuses.
struct WrongValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An element in both forms: what a line makes counts in the form of the line's dtype, and the other one follows it.
struct Number {
  Number(double number = 0);  // NOLINT(google-explicit-constructor): most results are real
  static Number of(int64_t integer);

  double real = 0;
  int64_t integer = 0;  // towards zero; of a real that it cannot be, the least one
};

/// A tensor without gaps, in order.
struct Value {
  std::vector<int64_t> sizes;
  std::vector<Number> data;
};

/// One line of an executable: `multiply 6 2x3 %0 %1`. Its result has a number, the line's.
struct Instruction {
  /// An integer that is known when the executable runs: the place of it, and the line whose result it is.
  struct Later {
    size_t place, value;
  };

  std::string operation;
  uint32_t dtype = 0;                 // as PyTorch counts
  std::vector<int64_t> sizes;         // of an input, kAnySize: as its operand has it
  std::vector<size_t> values;         // `%0`: results of earlier lines
  std::vector<int64_t> integers;      // `3`
  std::vector<double> numbers;        // `#0x1p-1`
  std::vector<Later> later_sizes;     // `$4x3`
  std::vector<Later> later_integers;  // `$4`
};

/// A program: a first line with the version and a checksum of all others, then an instruction a line, and a line for
/// each step that hardware would make of them: `step float32 FLOPS READ WRITTEN NAME`, numbers or, where sizes decide,
/// `$4`.
class Program {
 public:
  /// Throws BuildError for bytes that are damaged, another version's or no program.
  explicit Program(const std::string& text);
  /// Whether the operands are what the program reads and writes; else what is wrong with them.
  std::string problem(const std::vector<ob_operand>& operands) const;
  /// Computes the results. Throws WrongIndex and WrongValue, before anything is written, and std::exception for
  /// results that do not fit.
  void run(const std::vector<ob_operand>& operands) const;
  /// What hardware would do. One that its compiler says nothing of only reads its inputs and writes its results.
  std::vector<Step> steps(const std::vector<ob_operand>& operands) const;
  /// Whether it is to hang, as a fault of the chip's.
  bool hangs() const { return hangs_; }

 private:
  /// A step as its line has it: FLOPs, bytes read and written, and which of them are results of other lines.
  struct Planned {
    std::string name, dtype;
    std::array<double, 3> numbers{};
    std::vector<Instruction::Later> later;
  };

  void read(const std::string& line);
  void read_step(std::stringstream& words);
  /// The place of the line that a word such as `%3` names, which is read by the next one.
  size_t value_of(const std::string& word);
  std::vector<bool> needed_by_steps() const;
  /// The values that steps need, of what operands tell without being read.
  std::vector<Value> values_of_steps(const std::vector<ob_operand>& operands) const;

  std::vector<Instruction> instructions_;
  std::vector<size_t> inputs_, results_;  // places among the instructions, of `input` and `result`
  std::vector<size_t> last_use_;          // by instruction
  std::vector<Planned> steps_;
  std::vector<bool> for_steps_;  // by instruction: whether a step's numbers come of it
  bool hangs_ = false;
};

/// From a tensor's element 0 to the end of its last, in bytes.
uint64_t bytes_of(const ob_operand& tensor);

}  // namespace outboard::sim
