#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "json_caster.h"
#include "worker/python_stacks.h"

#include "ddip/base/error.h"
#include "ddip/worker/control.h"
#include "ddip/worker/crash.h"
#include "ddip/worker/warm_parent.h"

namespace ddip::bindings {
namespace {

using namespace std::chrono_literals;
using worker::Control;
using worker::Stream;

// How long a blocked call may keep Python from looking at signals.
constexpr auto kLook = 100ms;

std::vector<int> release_all(std::vector<Fd>& descriptors) {
  std::vector<int> numbers;
  for (Fd& fd : descriptors) numbers.push_back(fd.release());
  return numbers;
}

void bind_control(py::module_& module) {
  py::class_<Control>(module, "Control")
      .def(py::init([](int socket, int rank, uint32_t incarnation, py::dict about) {
             PyInterpreterState* interpreter = PyInterpreterState_Get();
             return std::make_unique<Control>(worker::ControlOptions{
                 Fd(socket), rank, incarnation, [interpreter] { return read_python_stacks(interpreter); },
                 [] { PyErr_SetInterrupt(); }, from_python(about)});
           }),
           py::arg("socket"), py::arg("rank"), py::arg("incarnation"), py::arg("about"))
      // None: nothing came in time. False: the group stops. Otherwise (cell, body, descriptors).
      .def("next_task",
           [](Control& control, int milliseconds) -> py::object {
             std::variant<std::monostate, Control::Task, Control::Ended> next;
             {
               py::gil_scoped_release release;
               next = control.next_task(std::chrono::milliseconds(milliseconds));
             }
             if (std::holds_alternative<std::monostate>(next)) return py::none();
             if (std::holds_alternative<Control::Ended>(next)) return py::bool_(false);
             Control::Task& task = std::get<Control::Task>(next);
             return py::make_tuple(task.id, to_python(task.body), release_all(task.descriptors));
           })
      .def("enter", &Control::enter)
      .def("leave", &Control::leave, py::call_guard<py::gil_scoped_release>())
      .def("armed", &Control::armed)
      .def(
          "finish",
          [](Control& control, uint64_t cell, py::dict body, const std::vector<int>& descriptors) {
            std::vector<Fd> owned;
            for (int fd : descriptors) owned.emplace_back(fd);
            control.finish(cell, from_python(body), std::move(owned));
          },
          py::arg("cell"), py::arg("body"), py::arg("descriptors") = std::vector<int>())
      .def("write",
           [](Control& control, uint64_t cell, int stream, const std::string& bytes) {
             for (;;) {
               {
                 py::gil_scoped_release release;
                 if (control.write(cell, static_cast<Stream>(stream), bytes, kLook)) return;
               }
               if (PyErr_CheckSignals() != 0) throw py::error_already_set();
             }
           })
      .def("display",
           [](Control& control, uint64_t cell, py::dict bundle) { control.display(cell, from_python(bundle)); })
      .def("note", &Control::note)
      .def(
          "say_all",
          [](Control& control, int milliseconds) { return control.say_all(std::chrono::milliseconds(milliseconds)); },
          py::call_guard<py::gil_scoped_release>())
      .def("ask",
           [](Control& control, uint64_t cell, const std::string& prompt, bool secret) {
             control.ask(cell, prompt, secret);
             for (;;) {
               std::optional<std::string> reply;
               {
                 py::gil_scoped_release release;
                 reply = control.asked_reply(kLook);
               }
               if (reply) return *reply;
               if (PyErr_CheckSignals() != 0) throw py::error_already_set();
             }
           })
      .def("enter_collective", [](Control& control, const std::string& operation,
                                  const std::string& group) { control.collectives().enter(operation, group); })
      .def("leave_collective", [](Control& control) { control.collectives().leave(); })
      .def("add_group", [](Control& control, const std::string& group,
                           const std::vector<int>& sockets) { control.collectives().add_group(group, sockets); })
      .def("add_describer",
           [](Control& control, const std::string& group, std::pair<uintptr_t, uintptr_t> describer) {
             control.collectives().add_describer(
                 group, {reinterpret_cast<void*>(describer.first),
                         reinterpret_cast<size_t (*)(void*, char*, size_t)>(describer.second)});
           })
      .def("remove_group",
           [](Control& control, const std::string& group) { control.collectives().remove_group(group); })
      .def("dead_groups", [](Control& control) { return control.collectives().dead_groups(); });
  module.def("keep_last_words", &worker::keep_last_words);
  module.def("connected_sockets", &worker::connected_sockets);
  module.def("connections_to", &worker::connections_to);
}

void bind_warm_parent(py::module_& module) {
  py::class_<worker::WarmParent>(module, "WarmParent")
      .def(py::init([](int socket) {
        return std::make_unique<worker::WarmParent>(Fd(socket), [] {
          PyOS_BeforeFork();
          pid_t pid = ::fork();
          if (pid == 0)
            PyOS_AfterFork_Child();
          else
            PyOS_AfterFork_Parent();
          return pid;
        });
      }))
      .def("say_warmed", [](worker::WarmParent& parent, py::dict report) { parent.say_warmed(from_python(report)); })
      // None in the parent, when the agent is gone. In a child: (rank, incarnation, environment, descriptors).
      .def("serve", [](worker::WarmParent& parent) -> py::object {
        auto birth = parent.serve();
        if (!birth) return py::none();
        return py::make_tuple(birth->rank, birth->incarnation, to_python(birth->environment),
                              release_all(birth->descriptors));
      });
}

}  // namespace

PYBIND11_MODULE(_worker, module) {
  module.doc() = "The native half of a ddip worker.";
  py::register_local_exception<ConfigError>(module, "ConfigError");
  bind_control(module);
  bind_warm_parent(module);
}

}  // namespace ddip::bindings
