#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <unistd.h>

#include "client/difference.h"
#include "client/options.h"
#include "json_caster.h"

#include "ddip/base/error.h"
#include "ddip/client/client.h"
#include "ddip/client/explain.h"
#include "ddip/client/start.h"
#include "ddip/coordinator/journal.h"
#include "ddip/net/local_socket.h"

namespace ddip::bindings {
namespace {

using namespace std::chrono_literals;
using client::CellEvent;
using client::Client;
using client::Milliseconds;

constexpr auto kLook = Milliseconds(50);

void look_at_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

wire::Type type_named(const std::string& name) {
  for (int number = 1; number < 32; ++number) {
    if (wire::name_of(static_cast<wire::Type>(number)) == name) return static_cast<wire::Type>(number);
  }
  if (name == "ping") return wire::Type::ping;
  throw py::value_error("no such request: " + name);
}

const char* kind_name(const CellEvent& event) {
  if (event.type == wire::Type::payload) return "payload";
  if (event.type == wire::Type::input_request) return "input_request";
  switch (event.kind) {
    case client::RecordKind::cell_started: return "cell_started";
    case client::RecordKind::output: return "output";
    case client::RecordKind::display: return "display";
    case client::RecordKind::rank_done: return "rank_done";
    case client::RecordKind::cell_done: return "cell_done";
    case client::RecordKind::note: return "note";
    case client::RecordKind::gap: return "gap";
  }
  return "unknown";
}

py::object json_text(const std::string& text) { return to_python(json::parse(text, nullptr, false)); }

// (kind, cell, rank, body, sequence, stream, descriptors); body: bytes of output, text of a note, else a dict.
py::tuple event_tuple(CellEvent& event) {
  std::string kind = kind_name(event);
  py::object body;
  if (kind == "output")
    body = py::bytes(event.bytes);
  else if (kind == "note" || kind == "gap")
    body = to_python(json(event.bytes));
  else if (kind == "payload" || kind == "input_request")
    body = to_python(event.body);
  else
    body = json_text(event.bytes);
  std::vector<int> descriptors;
  for (Fd& fd : event.descriptors) descriptors.push_back(fd.release());
  return py::make_tuple(kind, event.cell, event.rank, body, event.sequence, event.stream, descriptors);
}

void bind_client(py::module_& module) {
  py::class_<Client>(module, "Client")
      .def(py::init([](const std::string& folder, const std::string& name, double seconds) {
             py::gil_scoped_release release;
             return std::make_unique<Client>(client::GroupFolder{folder}, name,
                                             Milliseconds(static_cast<int64_t>(seconds * 1000)));
           }),
           py::arg("folder"), py::arg("name"), py::arg("timeout") = 5.0)
      .def_property_readonly("welcome", [](const Client& client) { return to_python(client.welcome()); })
      .def(
          "request",
          [](Client& client, const std::string& type, py::dict body, double seconds) {
            json request = from_python(body);
            json answer;
            {
              py::gil_scoped_release release;
              answer = client.request(type_named(type), std::move(request),
                                      Milliseconds(static_cast<int64_t>(seconds * 1000)));
            }
            return to_python(answer);
          },
          py::arg("type"), py::arg("body"), py::arg("timeout") = 10.0)
      .def(
          "send",
          [](Client& client, const std::string& type, py::dict body, int rank, uint64_t id) {
            json request = from_python(body);
            py::gil_scoped_release release;
            client.send(type_named(type), std::move(request), rank, id);
          },
          py::arg("type"), py::arg("body"), py::arg("rank") = -1, py::arg("id") = 0)
      .def(
          "execute",
          [](Client& client, py::dict body, const std::vector<int>& descriptors, bool keep_all) {
            json request = from_python(body);
            client::Accepted accepted;
            {
              py::gil_scoped_release release;
              accepted = client.execute(std::move(request), descriptors, Milliseconds(10000), keep_all);
            }
            return py::make_tuple(accepted.cell, to_python(accepted.behind));
          },
          py::arg("body"), py::arg("descriptors") = std::vector<int>(), py::arg("keep_all") = true)
      // The next event as a tuple, or None after `timeout` seconds. Looks at signals while it waits.
      .def(
          "next",
          [](Client& client, uint64_t cell, double seconds) -> py::object {
            auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
            for (;;) {
              std::optional<CellEvent> event;
              auto left = std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now());
              {
                py::gil_scoped_release release;
                event = client.next(cell, std::clamp(left, Milliseconds(0), kLook));
              }
              if (event) return event_tuple(*event);
              look_at_signals();
              if (left <= 0ms) return py::none();
            }
          },
          py::arg("cell"), py::arg("timeout"))
      .def("forget", &Client::forget)
      .def(
          "wait_for_end",
          [](Client& client, double seconds) {
            return client.wait_for_end(Milliseconds(static_cast<int64_t>(seconds * 1000)));
          },
          py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
}

void bind_groups(py::module_& module) {
  module.def("start_group",
             [](const std::string& program, py::dict config, double seconds, const py::function& progress) {
               client::StartOptions options{program, from_python(config), seconds};
               py::gil_scoped_release release;
               json ready = client::start_group(options, [&](const std::string& line) {
                 py::gil_scoped_acquire acquire;
                 look_at_signals();
                 if (!line.empty()) progress(line);
               });
               py::gil_scoped_acquire acquire;
               return to_python(ready);
             });
  module.def("runtime_folder",
             [](const std::string& override_folder) { return net::runtime_folder(override_folder).string(); });
  module.def("state_folder",
             [](const std::string& xdg, const std::string& home) { return client::state_folder(xdg, home).string(); });
  module.def("require_group", [](const std::string& runtime, const std::string& name) {
    return client::require_group(runtime, name).path.string();
  });
  module.def("is_running", [](const std::string& folder) { return client::is_running({folder}); });
  module.def("all_groups", [](const std::string& runtime) {
    std::vector<std::pair<std::string, bool>> groups;
    for (const client::GroupFolder& group : client::all_groups(runtime))
      groups.emplace_back(group.name(), client::is_running(group));
    return groups;
  });
  module.def("explain", [](py::dict why) { return client::explain(from_python(why)); });
  module.def("newest_journal", [](const std::string& state, const std::string& name) {
    return client::newest_journal(state, name).string();
  });
  // Calls visit(kind, cell, rank, body, sequence, stream, time) for each record; False from it ends the reading.
  module.def("read_journal", [](const std::string& folder, uint64_t after, const py::function& visit) {
    coordinator::read_journal(folder, after, [&](const coordinator::Record& record) {
      CellEvent event;
      event.type = wire::Type::record;
      event.kind = static_cast<client::RecordKind>(record.kind);
      event.cell = record.cell;
      event.rank = record.rank;
      event.stream = record.stream;
      event.sequence = record.sequence;
      event.bytes = record.body;
      py::tuple entry = event_tuple(event);
      py::object go_on = visit(entry[0], entry[1], entry[2], entry[3], entry[4], entry[5],
                               py::float_(static_cast<double>(record.time_us) * 1e-6));
      return go_on.is_none() || go_on.cast<bool>();
    });
  });
}

}  // namespace

PYBIND11_MODULE(_client, module) {
  module.doc() = "The native half of ddip's front: no torch in here.";
  py::register_local_exception<ConfigError>(module, "ConfigError", PyExc_ValueError);
  py::register_local_exception<PeerLost>(module, "PeerLost", PyExc_ConnectionError);
  py::register_local_exception<TimedOut>(module, "TimedOut", PyExc_TimeoutError);
  py::register_local_exception<ProtocolError>(module, "ProtocolError", PyExc_RuntimeError);
  bind_client(module);
  bind_groups(module);
  bind_options(module);
  bind_difference(module);
}

}  // namespace ddip::bindings
