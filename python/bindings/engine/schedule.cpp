// Plans of pipelines: made, checked, simulated, drawn. None of it needs torch; it lies here because pipelines do.
#include <fmt/format.h>

#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <tuple>

#include "bind.h"
#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/draw.h"
#include "ddip/schedule/file.h"
#include "ddip/schedule/own_plan.h"
#include "ddip/schedule/ready.h"
#include "ddip/schedule/simulate.h"
#include "ddip/schedule/window.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using schedule::Action;
using schedule::Plan;
using schedule::Request;
using schedule::Simulation;
using schedule::Verdict;
using Released = py::call_guard<py::gil_scoped_release>;

using StageCosts = std::vector<std::tuple<double, double, double, double, double>>;  // forward, backward, weight
                                                                                     // gradient, step, predict
using Edges = std::vector<std::pair<int, int>>;

schedule::Costs costs_of(const StageCosts& stages, std::vector<double> links) {
  schedule::Costs costs;
  for (const auto& [forward, backward, weight_gradient, step, predict] : stages)
    costs.stages.push_back({forward, backward, weight_gradient, step, predict});
  costs.links = std::move(links);
  return costs;
}

std::vector<schedule::Edge> edges_of(const Edges& pairs) {
  std::vector<schedule::Edge> edges;
  for (const auto& [from, to] : pairs) edges.push_back({from, to});
  return edges;
}

Plan make_plan(const std::string& name, int stages, int micro_batches, int64_t batches, int accumulate,
               std::vector<int> rank_of_stage, const Edges& edges, std::vector<int> window, int last_batch,
               std::optional<int> max_staleness, int64_t warmup, int64_t flush_every, std::optional<int64_t> switch_at,
               bool predicts, bool stashes, bool perturbs, std::vector<int> capacity, const StageCosts& costs,
               std::vector<double> links, std::string order) {
  Request request{.schedule = name,
                  .stages = stages,
                  .rank_of_stage = std::move(rank_of_stage),
                  .edges = edges_of(edges),
                  .micro_batches = micro_batches,
                  .batches = batches,
                  .last_batch = last_batch,
                  .accumulate = accumulate,
                  .window = std::move(window),
                  .max_staleness = max_staleness.value_or(-1),
                  .warmup = warmup,
                  .flush_every = flush_every,
                  .switch_at = switch_at.value_or(-1),
                  .order = std::move(order),
                  .needs = {.predicts = predicts, .stashes = stashes, .perturbs = perturbs},
                  .capacity = std::move(capacity),
                  .costs = costs_of(costs, std::move(links))};
  return schedule::make_plan(request);
}

// `ranks`: lines of each rank's actions, as they were done.
Plan as_done(const Plan& plan, const std::vector<std::vector<std::string>>& ranks) {
  schedule::RankLists done;
  for (const auto& lines : ranks) {
    auto& actions = done.emplace_back();
    for (const std::string& line : lines) actions.push_back(schedule::parse_action(line));
  }
  return schedule::plan_of_done(plan, std::move(done));
}

void draw(const Plan& plan, const std::string& path) {
  const bool svg = path.ends_with(".svg");
  if (!svg && !path.ends_with(".txt"))
    throw ConfigError(fmt::format("{}: expected a name that ends in .svg or .txt", path));
  const Simulation simulation = schedule::simulate(plan);
  const std::string text = svg ? schedule::draw_svg(plan, simulation) : schedule::draw_text(plan, simulation);
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

void bind_action(py::module_& module) {
  py::class_<Action>(module, "PlanAction")
      .def_property_readonly("kind", [](const Action& self) { return schedule::name_of(self.kind); })
      .def_property_readonly("direction", [](const Action& self) { return schedule::name_of(self.direction); })
      .def_readonly("stage", &Action::stage)
      .def_readonly("micro_batch", &Action::micro_batch)
      .def_readonly("edge", &Action::edge)
      .def_readonly("version", &Action::version)
      .def_readonly("staleness", &Action::staleness)
      .def("__repr__", &schedule::to_text);
}

void bind_answers(py::module_& module) {
  py::class_<Verdict>(module, "PlanVerdict")
      .def_property_readonly("ok", &Verdict::ok)
      .def_readonly("error", &Verdict::error)
      .def_readonly("deadlock_free", &Verdict::deadlock_free)
      .def_readonly("stall_free", &Verdict::stall_free)
      .def_readonly("frames", &Verdict::frames)
      .def_readonly("frames_ever", &Verdict::frames_ever)
      .def_readonly("activations", &Verdict::activations)
      .def_readonly("versions", &Verdict::versions)
      .def_readonly("staleness", &Verdict::staleness)
      .def("__repr__", [](const Verdict& self) {
        if (!self.ok()) return "refused: " + self.error;
        return std::string(self.stall_free ? "right; no send waits" : "right; sends wait for room");
      });
  py::class_<Simulation>(module, "PlanSimulation")
      .def_readonly("makespan", &Simulation::makespan)
      .def_readonly("utilisation", &Simulation::utilisation)
      .def_readonly("bubble", &Simulation::bubble)
      .def_readonly("inner_bubble", &Simulation::inner_bubble)
      // By rank and action: (begin, end).
      .def_property_readonly("timeline",
                             [](const Simulation& self) {
                               std::vector<std::vector<std::pair<double, double>>> timeline;
                               for (const auto& spans : self.timeline) {
                                 auto& rank = timeline.emplace_back();
                                 for (const auto& [begin, end] : spans) rank.emplace_back(begin, end);
                               }
                               return timeline;
                             })
      .def("__repr__", [](const Simulation& self) {
        return fmt::format("{:g} long, {:.1f}% bubble", self.makespan, 100 * self.bubble);
      });
}

void bind_plan(py::module_& module) {
  py::class_<Plan>(module, "Plan")
      .def_readonly("ranks", &Plan::ranks)
      .def_readonly("capacity", &Plan::capacity)
      .def_readonly("activations", &Plan::activations)
      .def_readonly("versions", &Plan::versions)
      .def_readonly("notes", &Plan::notes)
      .def_property_readonly("schedule", [](const Plan& self) { return self.request.schedule; })
      .def_property_readonly("stages", [](const Plan& self) { return self.request.stages; })
      .def_property_readonly("rank_of_stage", [](const Plan& self) { return self.request.rank_of_stage; })
      .def_property_readonly("edges",
                             [](const Plan& self) {
                               Edges edges;
                               for (const auto& [from, to] : self.request.edges) edges.emplace_back(from, to);
                               return edges;
                             })
      .def_property_readonly("window", [](const Plan& self) { return self.request.window; })
      .def_property_readonly("accumulate", [](const Plan& self) { return self.request.accumulate; })
      .def_property_readonly("micro_batches", [](const Plan& self) { return self.request.total(); })
      .def_property_readonly("order", [](const Plan& self) { return self.request.order; })
      .def("check", &schedule::check, Released())
      .def(
          "require_runnable",
          [](const Plan& self, const Plan& usual, std::vector<int> most_stale, bool steps_meet) {
            schedule::require_runnable(self, usual, {std::move(most_stale), steps_meet});
          },
          py::arg("usual"), py::arg("most_stale"), py::arg("steps_meet"), Released())
      .def("json", &schedule::to_json, Released())
      .def("as_done", &as_done, py::arg("ranks"), Released())
      .def(
          "simulate",
          [](const Plan& self, const StageCosts& costs, std::vector<double> links) {
            return schedule::simulate(self, costs_of(costs, std::move(links)));
          },
          py::arg("costs") = StageCosts{}, py::arg("links") = std::vector<double>{}, Released())
      .def("draw", &draw, py::arg("path"), Released())
      .def(
          "svg",
          [](const Plan& self, const std::string& title, double until, double width, bool messages) {
            return schedule::draw_svg(self, schedule::simulate(self), {title, until, width, messages});
          },
          py::arg("title") = "", py::arg("until") = 0.0, py::arg("width") = 960.0, py::arg("messages") = true)
      .def(
          "text",
          [](const Plan& self, int columns) { return schedule::draw_text(self, schedule::simulate(self), columns); },
          py::arg("columns") = 100)
      .def("_repr_svg_", [](const Plan& self) { return schedule::draw_svg(self, schedule::simulate(self)); })
      .def(
          "save", [](const Plan& self, const std::string& path) { schedule::save(self, path); }, py::arg("path"))
      .def_static(
          "load", [](const std::string& path) { return schedule::load(path); }, py::arg("path"))
      .def("__str__", [](const Plan& self) { return schedule::draw_text(self, schedule::simulate(self)); })
      .def("__repr__", [](const Plan& self) {
        return fmt::format("Plan({}, {} stages on {} ranks, {} micro-batches)", self.request.schedule,
                           self.request.stages, self.request.ranks(), self.request.total());
      });
}

}  // namespace

void bind_schedule(py::module_& module) {
  bind_action(module);
  bind_answers(module);
  bind_plan(module);
  module.def("schedule_names", &schedule::schedule_names);
  module.def("is_synchronous", &schedule::is_synchronous, py::arg("schedule"));
  module.def("make_plan", &make_plan, py::arg("schedule"), py::arg("stages"), py::arg("micro_batches"),
             py::arg("batches") = 1, py::arg("accumulate") = 1, py::kw_only(),
             py::arg("rank_of_stage") = std::vector<int>{}, py::arg("edges") = Edges{},
             py::arg("window") = std::vector<int>{}, py::arg("last_batch") = 0, py::arg("max_staleness") = py::none(),
             py::arg("warmup") = 0, py::arg("flush_every") = 0, py::arg("switch_at") = py::none(),
             py::arg("predicts") = false, py::arg("stashes") = false, py::arg("perturbs") = false,
             py::arg("capacity") = std::vector<int>{}, py::arg("costs") = StageCosts{},
             py::arg("links") = std::vector<double>{}, py::arg("order") = "plan", Released());
  // What fills the pipe: see window.h.
  module.def(
      "default_window",
      [](int stages, std::vector<int> rank_of_stage, const Edges& edges, const StageCosts& costs,
         std::vector<double> links) {
        return schedule::default_window({.schedule = "1f1b",
                                         .stages = stages,
                                         .rank_of_stage = std::move(rank_of_stage),
                                         .edges = edges_of(edges),
                                         .costs = costs_of(costs, std::move(links))});
      },
      py::arg("stages"), py::kw_only(), py::arg("rank_of_stage") = std::vector<int>{}, py::arg("edges") = Edges{},
      py::arg("costs") = StageCosts{}, py::arg("links") = std::vector<double>{});
}

}  // namespace ddip::bindings
