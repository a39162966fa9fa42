#include "client/difference.h"

#include <pybind11/stl.h>

#include "ddip/client/difference.h"

namespace ddip::bindings {

namespace py = pybind11;
using client::Difference;
using client::Stream;

namespace {

// Ranks may print any bytes; a notebook takes text.
py::str text_of(const std::string& bytes) {
  PyObject* decoded = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (!decoded) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

Difference::Time now() { return std::chrono::steady_clock::now(); }

}  // namespace

void bind_difference(py::module_& module) {
  py::class_<Difference>(module, "Difference")
      .def(py::init([](std::vector<int> ranks, bool append, size_t max_lines) {
             Difference::Options options;
             options.form = append ? Difference::Form::append : Difference::Form::rerender;
             options.max_lines = max_lines;
             return std::make_unique<Difference>(std::move(ranks), options);
           }),
           py::arg("ranks"), py::arg("append") = false, py::arg("max_lines") = 10000)
      .def("write", [](Difference& self, int rank, int stream,
                       const std::string& bytes) { self.write(rank, static_cast<Stream>(stream), bytes, now()); })
      .def("close", [](Difference& self, int rank) { self.close(rank, now()); })
      .def("advance", [](Difference& self) { self.advance(now()); })
      // Seconds until advance() has something to do; None: nothing waits.
      .def("wait",
           [](const Difference& self) -> std::optional<double> {
             auto deadline = self.deadline();
             if (!deadline) return std::nullopt;
             return std::max(0.0, std::chrono::duration<double>(*deadline - now()).count());
           })
      // [(ranks, stream, text, lines elided)]
      .def("blocks",
           [](Difference& self) {
             py::list blocks;
             for (const client::Block& block : self.blocks()) {
               blocks.append(
                   py::make_tuple(block.ranks, static_cast<int>(block.stream), text_of(block.text), block.elided));
             }
             return blocks;
           })
      .def("take_text",
           [](Difference& self) {
             py::list texts;
             for (const client::Text& piece : self.take_text(now()))
               texts.append(py::make_tuple(static_cast<int>(piece.stream), text_of(piece.text)));
             return texts;
           })
      .def("bars", [](const Difference& self) {
        py::dict bars;
        for (const auto& [rank, lines] : self.bars()) {
          py::list texts;
          for (const std::string& line : lines) texts.append(text_of(line));
          bars[py::int_(rank)] = texts;
        }
        return bars;
      });
  module.def("rank_list", &client::rank_list);
}

}  // namespace ddip::bindings
