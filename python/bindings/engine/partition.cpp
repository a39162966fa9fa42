#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/base/error.h"
#include "ddip/partition/draw.h"
#include "ddip/partition/placement.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using partition::Costs;
using partition::Edge;
using partition::Graph;
using partition::Node;
using partition::Plan;
using Released = py::call_guard<py::gil_scoped_release>;

enum class Placement { single, mixed, mirrored };

partition::Cut cut(const Graph& graph, size_t devices, const Costs& costs, Placement placement, uint64_t seed) {
  switch (placement) {
    case Placement::single: return partition::cut_model(graph, devices, costs, {.seed = seed});
    case Placement::mixed: return partition::cut_mixed(graph, devices, costs, {.seed = seed});
    case Placement::mirrored: break;
  }
  if (auto found = partition::cut_mirrored(graph, devices, costs)) return *found;
  throw ConfigError(
      "the model has no mirrored cut for that many devices that fits; expected single or mixed placement");
}

std::vector<std::vector<std::string>> stages_of(const Plan& plan) {
  std::vector<std::vector<std::string>> stages(plan.cut.stages());
  for (size_t node : plan.graph.order()) stages[plan.cut.stage_of[node]].push_back(plan.graph.nodes()[node].name);
  return stages;
}

void bind_graph(py::module_& module) {
  py::class_<Node>(module, "PartitionLayer")
      .def(py::init<std::string, double, double, uint64_t, uint64_t>(), py::arg("name"), py::arg("forward_ms") = 0,
           py::arg("backward_ms") = 0, py::arg("parameter_bytes") = 0, py::arg("activation_bytes") = 0)
      .def_readonly("name", &Node::name)
      .def_readonly("forward_ms", &Node::forward_ms)
      .def_readonly("backward_ms", &Node::backward_ms)
      .def_readonly("parameter_bytes", &Node::parameter_bytes)
      .def_readonly("activation_bytes", &Node::activation_bytes);
  py::class_<Edge>(module, "PartitionEdge")
      .def(py::init([](size_t from, size_t to, std::string value, std::string shape, uint64_t bytes) {
             return Edge{from, to, std::move(value), std::move(shape), bytes};
           }),
           py::arg("source"), py::arg("target"), py::arg("value") = "", py::arg("shape") = "", py::arg("bytes") = 0)
      .def_readonly("source", &Edge::from)
      .def_readonly("target", &Edge::to)
      .def_readonly("value", &Edge::value)
      .def_readonly("shape", &Edge::shape)
      .def_readonly("bytes", &Edge::bytes);
  py::class_<Graph>(module, "PartitionGraph")
      .def(py::init<std::vector<Node>, std::vector<Edge>>(), py::arg("layers"), py::arg("edges"))
      .def_property_readonly("layers", &Graph::nodes)
      .def_property_readonly("edges", &Graph::edges)
      .def_property_readonly("is_chain", &Graph::is_chain);
  py::class_<Costs>(module, "PartitionCosts")
      .def(py::init([](double link_bytes_per_ms, bool recompute, uint64_t memory_cap, double parameter_copies) {
             const Costs costs{link_bytes_per_ms, recompute, memory_cap, parameter_copies};
             partition::check_costs(costs);
             return costs;
           }),
           py::arg("link_bytes_per_ms") = 0, py::arg("recompute") = false, py::arg("memory_cap") = 0,
           py::arg("parameter_copies") = Costs().parameter_copies)
      .def_readonly("link_bytes_per_ms", &Costs::link_bytes_per_ms)
      .def_readonly("recompute", &Costs::recompute)
      .def_readonly("memory_cap", &Costs::memory_cap)
      .def_readonly("parameter_copies", &Costs::parameter_copies);
}

py::dict costs_of(const Plan& plan) {
  const partition::Cost cost = partition::cost_of(plan.graph, plan.cut, plan.costs);
  py::list devices;
  for (const partition::DeviceCost& device : cost.devices) {
    py::dict row;
    row["compute_ms"] = device.compute_ms;
    row["link_ms"] = device.link_ms;
    row["link_bytes"] = device.link_bytes;
    row["memory_bytes"] = device.memory_bytes;
    devices.append(row);
  }
  py::dict answer;
  answer["slowest_ms"] = cost.slowest_ms;
  answer["one_device_ms"] = partition::whole_ms(plan.graph);
  answer["link_bytes"] = cost.link_bytes;
  answer["speed_up"] = partition::speed_up(plan.graph, cost);
  answer["bubble"] = partition::bubble(cost);
  answer["devices"] = devices;
  return answer;
}

}  // namespace

void bind_partition(py::module_& module) {
  bind_graph(module);
  py::enum_<Placement>(module, "Placement")
      .value("single", Placement::single)
      .value("mixed", Placement::mixed)
      .value("mirrored", Placement::mirrored);
  py::class_<Plan>(module, "PartitionPlan")
      .def(py::init([](std::string model, const Graph& graph, size_t devices, const Costs& costs, Placement placement,
                       uint64_t seed) {
             return Plan{std::move(model), graph, cut(graph, devices, costs, placement, seed), costs};
           }),
           py::arg("model"), py::arg("graph"), py::arg("devices"), py::arg("costs") = Costs(),
           py::arg("placement") = Placement::single, py::arg("seed") = 0, Released())
      .def_static("read", &partition::read_plan, py::arg("text"), py::arg("where"))
      .def_readonly("model", &Plan::model)
      .def_readonly("graph", &Plan::graph)
      .def_readonly("costs", &Plan::costs)
      .def_property_readonly("stages", &stages_of)
      .def_property_readonly("device_of", [](const Plan& plan) { return plan.cut.device_of; })
      .def_property_readonly("devices", [](const Plan& plan) { return plan.cut.devices(); })
      .def("predict", &costs_of)
      .def("check_is_for", &partition::check_plan_is_for, py::arg("model"))
      .def("table", &partition::plan_table, py::arg("micro_batches") = 8)
      .def("picture", &partition::plan_picture)
      .def("__str__", &partition::plan_text);
  module.def("check_partition_world", &partition::check_world, py::arg("world"), py::arg("replicas"),
             py::arg("devices"));
}

}  // namespace ddip::bindings
