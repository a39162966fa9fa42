#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "bind.h"
#include "ddip/staleness/fused.h"
#include "ddip/staleness/gap_figures.h"
#include "ddip/staleness/make_policy.h"
#include "ddip/staleness/matrix.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using namespace staleness;
using Released = py::call_guard<py::gil_scoped_release>;
using MaybeTensor = std::optional<at::Tensor>;

// A policy written in Python. Arguments go as pointers: pybind11 would copy references, and changes would be lost.
class PythonPolicy : public Policy {
 public:
  // What its class does not say follows from the calls that it has.
  Needs needs(const Optimizer& optimizer) const override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("needs")) return own(&optimizer).cast<Needs>();
    auto has = [&](const char* name) { return static_cast<bool>(override_of(name)); };
    return {.forward_weights = has("before_forward"),
            .backward_weights = has("before_backward"),
            .own_gradient = has("after_backward"),
            .step = has("before_step") || has("after_step")};
  }
  bool before_forward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    return asked("before_forward", optimizer, moment, out);
  }
  bool before_backward(const Optimizer& optimizer, const Moment& moment, at::Tensor& out) override {
    return asked("before_backward", optimizer, moment, out);
  }
  void after_backward(const Optimizer& optimizer, const at::Tensor& used, at::Tensor& gradient) override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("after_backward")) own(&optimizer, used, gradient);
  }
  void before_step(const Optimizer& optimizer, Step& step) override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("before_step")) own(&optimizer, &step);
  }
  void after_step(Optimizer& optimizer, const Step& step) override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("after_step")) own(&optimizer, &step);
  }
  State state() const override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("state")) return own().cast<State>();
    return {};
  }
  void load_state(const State& state) override {
    py::gil_scoped_acquire lock;
    if (py::function own = override_of("load_state")) own(state);
  }

 private:
  py::function override_of(const char* name) const { return py::get_override(static_cast<const Policy*>(this), name); }

  bool asked(const char* name, const Optimizer& optimizer, const Moment& moment, at::Tensor& out) const {
    py::gil_scoped_acquire lock;
    py::function own = override_of(name);
    return own && static_cast<bool>(py::bool_(own(&optimizer, &moment, out)));
  }
};

// A tensor that may be undefined: None in Python.
template <typename Class, typename Owner>
void def_tensor(Class& type, const char* name, at::Tensor Owner::* member) {
  type.def_property(
      name, [member](const Owner& self) { return (self.*member).defined() ? MaybeTensor(self.*member) : std::nullopt; },
      [member](Owner& self, const MaybeTensor& value) { self.*member = value.value_or(at::Tensor()); });
}

// Sets attributes by name, so that a Python call may name any of them: Group(begin=0, end=8, rate=0.1).
template <typename Owner>
auto from_keywords() {
  return py::init([](const py::kwargs& values) {
    auto made = std::make_unique<Owner>();
    py::object self = py::cast(made.get(), py::return_value_policy::reference);
    for (const auto& [name, value] : values) {
      if (!py::hasattr(self, name)) throw py::type_error("there is no " + py::str(name).cast<std::string>());
      py::setattr(self, name, value);
    }
    return made;
  });
}

void bind_optimizer(py::module_& module) {
  py::enum_<Rule>(module, "Rule")
      .value("sgd", Rule::sgd)
      .value("sutskever", Rule::sutskever)
      .value("adam", Rule::adam)
      .value("adamw", Rule::adamw)
      .value("nadam", Rule::nadam)
      .value("other", Rule::other);
  module.def("rule_of", &rule_of, py::arg("name"));
  py::class_<Group>(module, "StageGroup", "One parameter group: a slice of a stage's flat tensors")
      .def(from_keywords<Group>())
      .def_readwrite("begin", &Group::begin)
      .def_readwrite("end", &Group::end)
      .def_readwrite("rate", &Group::rate)
      .def_readwrite("momentum", &Group::momentum)
      .def_readwrite("dampening", &Group::dampening)
      .def_readwrite("weight_decay", &Group::weight_decay)
      .def_readwrite("nesterov", &Group::nesterov)
      .def_readwrite("maximize", &Group::maximize)
      .def_readwrite("amsgrad", &Group::amsgrad)
      .def_readwrite("beta1", &Group::beta1)
      .def_readwrite("beta2", &Group::beta2)
      .def_readwrite("eps", &Group::eps)
      .def_readwrite("momentum_decay", &Group::momentum_decay)
      .def_readwrite("decoupled_weight_decay", &Group::decoupled_weight_decay);
  py::class_<Optimizer> optimizer(module, "StageOptimizer", "What a policy knows of a stage's optimizer");
  optimizer.def(from_keywords<Optimizer>())
      .def_readwrite("rule", &Optimizer::rule)
      .def_readwrite("groups", &Optimizer::groups)
      .def_readwrite("steps", &Optimizer::steps)
      .def_readwrite("mu_products", &Optimizer::mu_products)
      .def_readwrite("unstepped", &Optimizer::unstepped);
  def_tensor(optimizer, "weights", &Optimizer::weights);
  def_tensor(optimizer, "velocity", &Optimizer::velocity);
  def_tensor(optimizer, "second", &Optimizer::second);
}

void bind_moments(py::module_& module) {
  py::class_<Moment> moment(module, "StageMoment", "Where a stage stands at a forward or backward");
  moment.def(from_keywords<Moment>())
      .def_readwrite("micro_batch", &Moment::micro_batch)
      .def_readwrite("version", &Moment::version)
      .def_readwrite("staleness", &Moment::staleness)
      .def_readwrite("rates", &Moment::rates)
      .def_readwrite("pending_micro_batches", &Moment::pending_micro_batches)
      .def_readwrite("pending_samples", &Moment::pending_samples)
      .def_readwrite("loss_scale", &Moment::loss_scale)
      .def_readwrite("accumulate", &Moment::accumulate)
      .def_readwrite("stage", &Moment::stage)
      .def_readwrite("stages", &Moment::stages)
      .def_readwrite("mean_staleness", &Moment::mean_staleness);
  def_tensor(moment, "pending", &Moment::pending);
  py::class_<Step> step(module, "StageStep", "One STEP, before or after it");
  step.def(from_keywords<Step>())
      .def_readwrite("rates", &Step::rates)
      .def_readwrite("mean_staleness", &Step::mean_staleness);
  def_tensor(step, "gradient", &Step::gradient);
  def_tensor(step, "weights_before", &Step::weights_before);
  py::class_<Needs>(module, "StalenessNeeds", "What a policy wants the executor to keep or to make")
      .def(from_keywords<Needs>())
      .def_readwrite("forward_weights", &Needs::forward_weights)
      .def_readwrite("steady", &Needs::steady)
      .def_readwrite("backward_weights", &Needs::backward_weights)
      .def_readwrite("stash", &Needs::stash)
      .def_readwrite("pending", &Needs::pending)
      .def_readwrite("own_gradient", &Needs::own_gradient)
      .def_readwrite("weights_before_step", &Needs::weights_before_step)
      .def_readwrite("step", &Needs::step);
}

}  // namespace

void bind_staleness(py::module_& module) {
  bind_optimizer(module);
  bind_moments(module);
  py::class_<Policy, PythonPolicy, std::shared_ptr<Policy>>(module, "StalenessPolicy",
                                                            "Subclass it with the calls that you care about")
      .def(py::init<>())
      .def("needs", &Policy::needs, py::arg("optimizer"), Released())
      .def("before_forward", &Policy::before_forward, py::arg("optimizer"), py::arg("moment"), py::arg("out"),
           Released())
      .def("before_backward", &Policy::before_backward, py::arg("optimizer"), py::arg("moment"), py::arg("out"),
           Released())
      .def("after_backward", &Policy::after_backward, py::arg("optimizer"), py::arg("used"), py::arg("gradient"),
           Released())
      .def("before_step", &Policy::before_step, py::arg("optimizer"), py::arg("step"), Released())
      .def("after_step", &Policy::after_step, py::arg("optimizer"), py::arg("step"), Released())
      .def("state", &Policy::state, Released())
      .def("load_state", &Policy::load_state, py::arg("state"), Released());
  module.def(
      "make_policy",
      [](const std::string& name, bool second_decays, int64_t annealing_steps, double pipemare_decay, double gap_decay,
         double gap_eps) -> std::shared_ptr<Policy> {
        return make_policy(name, {second_decays, {annealing_steps, pipemare_decay}, {gap_decay, gap_eps}});
      },
      py::arg("name"), py::kw_only(), py::arg("second_decays") = false, py::arg("annealing_steps") = 0,
      py::arg("pipemare_decay") = PipemareOptions().decay, py::arg("gap_decay") = GapOptions().decay,
      py::arg("gap_eps") = GapOptions().eps);
  module.def("policy_names", &policy_names);
  module.def("auto_policy", &auto_policy, py::arg("rule"));
  module.def("nesterov_beta1", &nesterov_beta1, py::arg("beta"), py::arg("versions"), py::arg("stages"));
  module.def("runs_fused", &runs_fused, py::arg("tensor"), Released());
  module.def("why_unfused", &why_unfused, py::arg("tensor"),
             "Why torch's operations serve this tensor; empty where code of our own does", Released());
  module.def(
      "gap_figures",
      [](const at::Tensor& at_forward, const at::Tensor& used, const at::Tensor& at_backward) {
        const GapFigures figures = gap_figures(at_forward, used, at_backward);
        return std::pair(figures.moved, figures.error);
      },
      py::arg("at_forward"), py::arg("used"), py::arg("at_backward"), "(moved, error)", Released());
  module.def("cosine", &cosine, py::arg("stale"), py::arg("fresh"), Released());
  py::enum_<Fit>(module, "Fit").value("valid", Fit::valid).value("no_op", Fit::no_op).value("refused", Fit::refused);
  auto pair_of = [](const Verdict& verdict) { return std::pair(verdict.fit, verdict.why); };
  module.def(
      "schedule_takes",
      [pair_of](const std::string& schedule, const std::string& policy) {
        return pair_of(schedule_takes(schedule, policy));
      },
      py::arg("schedule"), py::arg("policy"), "(fit, why)");
  module.def(
      "optimizer_takes",
      [pair_of](const Optimizer& optimizer, const std::string& policy) {
        return pair_of(optimizer_takes(optimizer, policy));
      },
      py::arg("optimizer"), py::arg("policy"), "(fit, why)");
}

}  // namespace ddip::bindings
