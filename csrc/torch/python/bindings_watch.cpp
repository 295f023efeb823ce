// SPDX-License-Identifier: Apache-2.0
#include "torch/python/bindings_watch.h"

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
  return PyDict_Check(object) && !PyODict_Check(object) ? reinterpret_cast<PyDictObject*>(object)->ma_version_tag : 0;
#else
  return 0;
#endif
}

/// What a watched object holds, in order; references are borrowed from it, nullptr stands for what is missing.
using Values = std::vector<PyObject*>;

void add_items(PyObject* dictionary, Values& found) {
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t place = 0; PyDict_Next(dictionary, &place, &key, &value) != 0;) {
    found.push_back(key);
    found.push_back(value);
  }
}

/// An OrderedDict has an order of its own beside that of the dictionary below it.
void add_ordered(PyObject* dictionary, Values& found) {
  for (py::handle key : py::reinterpret_borrow<py::object>(dictionary)) {
    found.push_back(key.ptr());
    found.push_back(PyDict_GetItemWithError(dictionary, key.ptr()));
  }
}

void add_function(PyObject* function, Values& found) {
  found.push_back(PyFunction_GetCode(function));
  found.push_back(PyFunction_GetDefaults(function));
  found.push_back(PyFunction_GetKwDefaults(function));
}

/// The keys and values of a dictionary, the attributes of a class, the content of a cell of a closure or of a context
/// variable, the code and the defaults of a function, or the items of a list or any other collection.
Values values_of(PyObject* object) {
  Values found;
  if (PyODict_Check(object)) {
    add_ordered(object, found);
  } else if (PyDict_Check(object)) {
    add_items(object, found);
  } else if (PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) found.push_back(PyList_GET_ITEM(object, i));
  } else if (PyType_Check(object)) {
    add_items(reinterpret_cast<PyTypeObject*>(object)->tp_dict, found);
  } else if (PyCell_Check(object)) {
    found.push_back(PyCell_GET(object));
  } else if (PyContextVar_CheckExact(object)) {
    PyObject* value = nullptr;
    if (PyContextVar_Get(object, nullptr, &value) != 0) throw py::error_already_set();
    Py_XDECREF(value);  // the context holds it
    found.push_back(value);
  } else if (PyFunction_Check(object)) {
    add_function(object, found);
  } else {
    // Borrowed, as above: what a collection yields, it holds.
    for (py::handle item : py::reinterpret_borrow<py::object>(object)) found.push_back(item.ptr());
  }
  return found;
}

/// The values of some keys of a dictionary.
Values entries_of(PyObject* dictionary, const std::vector<py::object>& names) {
  Values found;
  for (const py::object& name : names) found.push_back(PyDict_GetItemWithError(dictionary, name.ptr()));
  return found;
}

/// What slots (member descriptors of its class) hold for an object.
Values slots_of(PyObject* object, const std::vector<py::object>& slots) {
  Values found;
  for (const py::object& slot : slots) {
    PyObject* value =
        Py_TYPE(slot.ptr())->tp_descr_get(slot.ptr(), object, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (value == nullptr) PyErr_Clear();  // an empty slot
    Py_XDECREF(value);                    // the slot holds it
    found.push_back(value);
  }
  return found;
}

/// Something with values that may be replaced: all of an object's, or those named.
class Watched {
 public:
  Watched(py::object object, std::vector<py::object> names) : object_(std::move(object)), names_(std::move(names)) {
    for (PyObject* value : look()) values_.push_back(py::reinterpret_borrow<py::object>(value));
    version_ = version_of(dictionary());
  }

  bool is_unchanged() {
    const uint64_t version = version_of(dictionary());
    if (version != 0 && version == version_) return true;
    const Values now = look();
    const bool same = std::equal(now.begin(), now.end(), values_.begin(), values_.end(),
                                 [](PyObject* one, const py::object& other) { return one == other.ptr(); });
    if (same) version_ = version;
    return same;
  }

  /// The place of the first value that was replaced; the number of values if there are more or fewer of them.
  size_t first_change() const {
    const Values now = look();
    size_t place = 0;
    while (place < now.size() && place < values_.size() && now[place] == values_[place].ptr()) ++place;
    return place;
  }

 private:
  Values look() const {
    if (names_.empty()) return values_of(object_.ptr());
    return PyDict_Check(object_.ptr()) ? entries_of(object_.ptr(), names_) : slots_of(object_.ptr(), names_);
  }

  PyObject* dictionary() const {
    return PyType_Check(object_.ptr()) ? reinterpret_cast<PyTypeObject*>(object_.ptr())->tp_dict : object_.ptr();
  }

  py::object object_;
  std::vector<py::object> names_;
  std::vector<py::object> values_;
  uint64_t version_ = 0;
};

/// Objects with the very values that they had, and tensors with their elements where they were.
class Watch {
 public:
  Watch(const std::vector<std::pair<py::object, std::vector<py::object>>>& watched, std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)) {
    for (const auto& [object, names] : watched) watched_.emplace_back(object, names);
    for (const at::Tensor& tensor : tensors_) places_.push_back(place_of(tensor));
  }

  bool is_unchanged() {
    return std::all_of(watched_.begin(), watched_.end(), [](Watched& each) { return each.is_unchanged(); }) &&
           std::equal(tensors_.begin(), tensors_.end(), places_.begin(),
                      [](const at::Tensor& tensor, const Place& place) { return place_of(tensor) == place; });
  }

  /// The number of the first object that is not as it was and the place of the value that was replaced, or None.
  py::object changed() {
    for (size_t i = 0; i < watched_.size(); ++i)
      if (!watched_[i].is_unchanged()) return py::make_tuple(i, watched_[i].first_change());
    return py::none();
  }

 private:
  /// Where elements are and, if the host can write to them, how often that was done.
  using Place = std::pair<const void*, uint32_t>;

  static Place place_of(const at::Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.is_cpu() ? tensor._version() : 0};
  }

  std::vector<Watched> watched_;
  std::vector<at::Tensor> tensors_;
  std::vector<Place> places_;
};

/// Whether a class was written in Python: all that its instances hold beside what its bases do is attributes and slots.
bool is_python_class(const py::object& type) {
  // Classes of Python have one function in common that frees their instances; it has no name outside of CPython.
  static const destructor frees_instances = [] {
    const py::object made = py::module_::import("types").attr("new_class")("Plain");
    return reinterpret_cast<PyTypeObject*>(made.ptr())->tp_dealloc;
  }();
  return PyType_Check(type.ptr()) && reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dealloc == frees_instances;
}

}  // namespace

void bind_watch(py::module_& m) {
  py::class_<Watch>(m, "Watch", "Tells whether objects hold the very values that they held, and tensors did not move.")
      .def(py::init<const std::vector<std::pair<py::object, std::vector<py::object>>>&, std::vector<at::Tensor>>(),
           "Objects, each with the keys (of a dictionary) or slots to look at, or none of them: then at all it holds.")
      .def("is_unchanged", &Watch::is_unchanged, "Whether nothing was replaced.")
      .def("changed", &Watch::changed,
           "(number of the first object that is not as it was, place of the value), or None.");
  m.def("is_python_class", &is_python_class, "Whether a class was written in Python.");
}

}  // namespace outboard::aten
