// SPDX-License-Identifier: Apache-2.0
#include "torch/bindings_watch.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace outboard::aten {
namespace {

/// A number that changes with each change of a dictionary, or 0 where this Python has none (PEP 509, withdrawn in
/// Python 3.12). One word per dictionary: what has left the caches since the last look, and most of it has, comes from
/// memory in one piece instead of item by item.
uint64_t version_of([[maybe_unused]] PyObject* object) {
#if PY_VERSION_HEX < 0x030C0000
  return PyDict_Check(object) ? reinterpret_cast<PyDictObject*>(object)->ma_version_tag : 0;
#else
  return 0;
#endif
}

/// The values of a dictionary, or the items of a list or any other collection, in order.
std::vector<PyObject*> values_of(PyObject* object) {
  std::vector<PyObject*> found;
  if (PyDict_Check(object)) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(object, &place, &key, &value) != 0;) found.push_back(value);
    return found;
  }
  if (PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) found.push_back(PyList_GET_ITEM(object, i));
    return found;
  }
  // Borrowed, as above: what a collection yields, it holds.
  for (py::handle item : py::reinterpret_borrow<py::object>(object)) found.push_back(item.ptr());
  return found;
}

/// Containers with the very values that they had, and tensors with their elements where they were.
class Watch {
 public:
  Watch(std::vector<py::object> containers, std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (py::object& container : containers) {
      Container seen{std::move(container), 0, {}};
      seen.version = version_of(seen.object.ptr());
      for (PyObject* value : values_of(seen.object.ptr()))
        seen.values.push_back(py::reinterpret_borrow<py::object>(value));
      containers_.push_back(std::move(seen));
    }
    for (const at::Tensor& tensor : tensors_) places_.push_back(place_of(tensor));
  }

  bool is_unchanged() {
    return std::all_of(containers_.begin(), containers_.end(), [](Container& seen) { return is_same(seen); }) &&
           std::equal(tensors_.begin(), tensors_.end(), places_.begin(),
                      [](const at::Tensor& tensor, const Place& place) { return place_of(tensor) == place; });
  }

  /// The first container that is not as it was, with the values that it had, or None.
  py::object changed() {
    for (Container& seen : containers_)
      if (!is_same(seen)) return py::make_tuple(seen.object, seen.values);
    return py::none();
  }

 private:
  struct Container {
    py::object object;
    uint64_t version;
    std::vector<py::object> values;
  };
  /// Where elements are and, if the host can write to them, how often that was done.
  using Place = std::pair<const void*, uint32_t>;

  static bool is_same(Container& seen) {
    const uint64_t version = version_of(seen.object.ptr());
    if (version != 0 && version == seen.version) return true;
    const std::vector<PyObject*> now = values_of(seen.object.ptr());
    const bool same = std::equal(now.begin(), now.end(), seen.values.begin(), seen.values.end(),
                                 [](PyObject* one, const py::object& other) { return one == other.ptr(); });
    if (same) seen.version = version;
    return same;
  }

  static Place place_of(const at::Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.is_cpu() ? tensor._version() : 0};
  }

  std::vector<Container> containers_;
  std::vector<at::Tensor> tensors_;
  std::vector<Place> places_;
};

}  // namespace

void bind_watch(py::module_& m) {
  py::class_<Watch>(m, "Watch",
                    "Tells whether containers hold the very values that they held, and tensors did not move.")
      .def(py::init<std::vector<py::object>, std::vector<at::Tensor>>())
      .def("is_unchanged", &Watch::is_unchanged, "Whether nothing was replaced.")
      .def("changed", &Watch::changed, "The first container that is not as it was and the values it had, or None.");
}

}  // namespace outboard::aten
