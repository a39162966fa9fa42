#include "client/options.h"

#include <pybind11/stl.h>

#include <thread>

#include "ddip/base/nearest_name.h"
#include "ddip/launch/apps.h"
#include "ddip/launch/cell_options.h"
#include "ddip/launch/devices.h"
#include "ddip/launch/group_name.h"
#include "ddip/launch/group_options.h"
#include "ddip/launch/local/plan.h"
#include "ddip/launch/rank_list.h"

namespace ddip::bindings {

namespace py = pybind11;

namespace {

const char* action_name(launch::Action action) {
  switch (action) {
    case launch::Action::Start: return "start";
    case launch::Action::Attach: return "attach";
    case launch::Action::Restart: return "restart";
    case launch::Action::Kill: return "kill";
    case launch::Action::Info: return "info";
    case launch::Action::Rebuild: return "rebuild";
  }
  return "";
}

const char* place_name(launch::Place place) {
  switch (place) {
    case launch::Place::Remote: return "remote";
    case launch::Place::Local: return "local";
    case launch::Place::Everywhere: return "everywhere";
  }
  return "";
}

// Everything that can be refused is refused here, before any process starts. With -h: {"help": text}.
py::dict check_group_flags(const std::vector<std::string>& flags, const std::string& command,
                           const std::map<std::string, std::string>& environment,
                           const std::optional<std::string>& test_devices) {
  py::dict result;
  try {
    launch::GroupOptions options = launch::parse_group_flags(flags, command);
    std::optional<std::string> visible;
    if (auto found = environment.find("CUDA_VISIBLE_DEVICES"); found != environment.end()) visible = found->second;
    auto devices =
        (test_devices ? launch::written_devices(*test_devices, visible) : launch::nvidia_devices(visible))->devices();
    launch::local::Plan plan = launch::local::plan(
        options, devices, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), environment);
    result["action"] = action_name(options.action);
    result["name"] = options.name;
    result["ranks"] = options.ranks;
    result["client"] = options.client;
    result["verbose"] = options.verbose;
    result["timeout"] = options.timeout.count();
    result["idle"] = options.idle.count();
    result["python"] = options.python;
    result["app"] = options.app;
    const launch::App* app = launch::find_app(options.app);
    result["app_module"] = app != nullptr ? app->module : "";
    result["on_exit"] = options.on_exit == launch::OnExit::Stop ? "stop" : "keep";
    result["world_size"] = plan.world_size;
    result["gpus"] = plan.gpus;
    result["sentence"] = plan.sentence;
    result["has_shape"] = options.workers.has_value() || options.gpus.has_value();
  } catch (const launch::HelpRequested& help) {
    result["help"] = help.text;
  }
  return result;
}

py::dict parse_cell_flags(const std::vector<std::string>& flags, const std::string& command) {
  py::dict result;
  try {
    launch::CellOptions options = launch::parse_cell_flags(flags, command);
    result["place"] = place_name(options.place);
    result["ranks"] = options.ranks;
    result["see"] = options.see;
    result["quiet"] = options.quiet;
    result["plain"] = options.plain;
    result["verbose"] = options.verbose;
    result["async"] = options.async;
    result["async_name"] = options.async_name;
    result["out"] = options.out;
    result["check"] = options.check;
    result["app_command"] = options.app_command;
  } catch (const launch::HelpRequested& help) {
    result["help"] = help.text;
  }
  return result;
}

}  // namespace

void bind_options(py::module_& module) {
  module.def("check_group_flags", &check_group_flags, py::arg("flags"), py::arg("command"), py::arg("environment"),
             py::arg("test_devices") = py::none());
  module.def("parse_cell_flags", &parse_cell_flags, py::arg("flags"), py::arg("command") = "%%dip");
  module.def("parse_rank_list", &launch::parse_rank_list, py::arg("text"), py::arg("world_size"),
             py::arg("where") = "--ranks");
  module.def("format_rank_list", &launch::format_rank_list);
  module.def("notebook_group_name", [](const std::string& path) { return launch::notebook_group_name(path); });
  module.def("script_group_name",
             [](const std::string& script, int64_t pid) { return launch::script_group_name(script, pid); });
  module.def("app_names", &launch::app_names);
  module.def("did_you_mean", [](const std::string& name, const std::vector<std::string>& candidates) {
    return did_you_mean(name, candidates);
  });
}

}  // namespace ddip::bindings
