#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

#include "bind.h"
#include "ddip/pipeline/evaluation.h"
#include "ddip/pipeline/executor.h"
#include "ddip/pipeline/hidden_weights.h"
#include "value_caster.h"

namespace ddip::bindings {
namespace {

namespace py = pybind11;
using namespace pipeline;  // NOLINT(google-build-using-namespace): this file binds its names and no others
using Released = py::call_guard<py::gil_scoped_release>;

// Ctrl-C reaches a rank as a pending Python signal.
void look_for_signals() {
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Tells Python what has been done; Python says in how many seconds it wants to be told again.
class Progress {
 public:
  explicit Progress(py::object tell) : tell_(std::move(tell)) {}
  void operator()(const Record& record) {
    auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    py::gil_scoped_acquire acquire;
    auto seconds = tell_(py::cast(&record, py::return_value_policy::reference)).cast<double>();
    next_ =
        now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  const py::object tell_;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

std::vector<schedule::Edge> ends_of(const std::vector<std::pair<int, int>>& edges) {
  std::vector<schedule::Edge> ends;
  for (auto [from, to] : edges) ends.push_back({from, to});
  return ends;
}

// A rank's list as it is: of a long run it has millions of actions, and Python would make an object of each.
struct Actions {
  std::vector<schedule::Action> list;
  std::optional<schedule::Request> ready;  // of a plan whose order is found while it runs
};

Actions actions_of(const schedule::Plan& plan, int rank) {
  Actions found{plan.ranks.at(static_cast<size_t>(rank)), {}};
  if (plan.request.order == "ready") found.ready = plan.request;
  return found;
}

void bind_weights(py::module_& module) {
  py::class_<Weights, std::shared_ptr<Weights>>(module, "Weights")
      .def(py::init<const std::vector<at::Tensor>&, const std::vector<std::string>&, bool>(), py::arg("parameters"),
           py::arg("names"), py::arg("apart"))
      .def_property_readonly("masters", &Weights::masters)
      .def_property_readonly("truth", &Weights::truth)
      .def_property_readonly("apart", &Weights::apart)
      .def_property_readonly("begins", &Weights::begins)
      .def_property_readonly("unreached", &Weights::unreached)
      .def("show", &Weights::show, py::arg("flat"))
      .def("slices", &Weights::slices, py::arg("flat"));

  py::class_<Versions, std::shared_ptr<Versions>>(module, "Versions")
      .def(py::init([](std::shared_ptr<Weights> weights, std::shared_ptr<staleness::Policy> policy,
                       std::function<staleness::Optimizer()> optimizer,
                       std::function<std::vector<std::vector<double>>(int)> rates,
                       std::function<void(const std::vector<double>&)> step, std::function<bool()> stepped, int stage,
                       int stages) {
             // A stop that came meanwhile is raised when the step is over.
             auto over = [stepped = std::move(stepped)] {
               if (stepped()) PyErr_SetInterrupt();
             };
             return std::make_shared<Versions>(
                 std::move(weights), std::move(policy),
                 Versions::Asks{std::move(optimizer), std::move(rates), std::move(step), std::move(over)}, stage,
                 stages);
           }),
           py::arg("weights"), py::arg("policy"), py::arg("optimizer"), py::arg("rates"), py::arg("step"),
           py::arg("stepped"), py::arg("stage"), py::arg("stages"))
      .def_property_readonly("version", &Versions::version)
      .def_property_readonly("kept", &Versions::kept)
      .def_property_readonly("predicts", &Versions::predicts)
      .def("settle", &Versions::settle, Released());
}

// Reads like a list of Done, each made when it is looked at: all of them at once would be a GiB of a long run.
struct RecordActions {
  const Record* record;
};

void bind_records(py::module_& module) {
  py::class_<Used>(module, "Used")
      .def_readonly("label", &Used::label)
      .def_readonly("version", &Used::version)
      .def_readonly("staleness", &Used::staleness)
      .def_readonly("predicted", &Used::predicted)
      .def_readonly("rates", &Used::rates)
      .def_readonly("pending", &Used::pending);
  py::class_<ReadBack>(module, "ReadBack")
      .def_readonly("version", &ReadBack::version)
      .def_readonly("rates", &ReadBack::rates)
      .def_property_readonly("source", [](const ReadBack& self) {
        switch (self.from) {
          case ReadBack::From::forward: return "forward";
          case ReadBack::From::truth: return "true";
          case ReadBack::From::policy: return "policy";
        }
        return "";
      });
  py::class_<Versions::Stepped>(module, "Stepped")
      .def_readonly("micro_batches", &Versions::Stepped::micro_batches)
      .def_readonly("count", &Versions::Stepped::count)
      .def_readonly("norm", &Versions::Stepped::norm)
      .def_readonly("scale", &Versions::Stepped::scale)
      .def_readonly("left_out", &Versions::Stepped::left_out)
      .def_readonly("rates", &Versions::Stepped::rates);
  py::class_<Done>(module, "Done")
      .def_readonly("action", &Done::action)
      .def_readonly("begin", &Done::begin)
      .def_readonly("end", &Done::end)
      .def_readonly("count", &Done::count)
      .def_readonly("used", &Done::used)
      .def_readonly("read", &Done::read)
      .def_readonly("loss_scale", &Done::loss_scale)
      .def_readonly("split", &Done::split)
      .def_readonly("stepped", &Done::stepped);
  py::class_<RecordActions>(module, "RecordActions")
      .def("__len__", [](const RecordActions& self) { return self.record->size(); })
      .def("__getitem__", [](const RecordActions& self, size_t place) {
        if (place >= self.record->size()) throw py::index_error();
        return self.record->at(place);
      });
  py::class_<Losses::Newest>(module, "NewestLosses")
      .def_readonly("micro_batch", &Losses::Newest::micro_batch)
      .def_readonly("sum", &Losses::Newest::sum)
      .def_readonly("count", &Losses::Newest::count);
  py::class_<Record>(module, "Record")
      .def_readonly("start", &Record::start)
      .def_property_readonly(
          "actions", py::cpp_function([](const Record& self) { return RecordActions{&self}; }, py::keep_alive<0, 1>()))
      // The last ones: all of them, again and again, would take too long.
      .def(
          "newest_actions",
          [](const Record& self, size_t count) {
            std::vector<Done> found;
            for (size_t place = self.size() - std::min(count, self.size()); place < self.size(); ++place)
              found.push_back(self.at(place));
            return found;
          },
          py::arg("count"))
      .def(
          "newest_losses", [](const Record& self, size_t count) { return self.losses.newest(count); }, py::arg("count"))
      .def_property_readonly("losses",
                             [](const Record& self) {
                               std::vector<std::tuple<int64_t, double, double>> found;
                               for (const auto& [micro_batch, sum, count] : self.losses.all())
                                 found.emplace_back(micro_batch, sum, count);
                               return found;
                             })
      .def_property_readonly("bytes", &Record::bytes)
      .def_readonly("bytes_sent", &Record::bytes_sent)
      .def_readonly("whole_backwards", &Record::whole_backwards)
      .def_readonly("unreached", &Record::unreached);
}

void bind_stage(py::module_& module) {
  py::class_<Sample>(module, "Sample")
      .def(py::init([](Value value, int64_t count, bool begins_batch) {
             return Sample{std::move(value), count, begins_batch};
           }),
           py::arg("value"), py::arg("count"), py::arg("begins_batch"));
  py::class_<Loss>(module, "Loss")
      .def(py::init([](at::Tensor sum, double count) { return Loss{std::move(sum), count}; }), py::arg("sum"),
           py::arg("count"));
  py::class_<Gaps::Means>(module, "GapMeans")
      .def_readonly("moved", &Gaps::Means::moved)
      .def_readonly("error", &Gaps::Means::error);
  py::class_<Gaps, std::shared_ptr<Gaps>>(module, "Gaps")
      .def(py::init<>())
      .def_property_readonly("means", &Gaps::means);
  py::class_<HiddenWeights>(module, "HiddenWeights")
      .def(py::init<const std::vector<at::Tensor>&, const std::vector<std::pair<std::string, at::Tensor>>&>(),
           py::arg("own"), py::arg("others"))
      .def("enter", &HiddenWeights::enter, py::arg("inputs"))
      // (name, elements) of what it finds, the name empty if it is in no stage.
      .def(
          "leave",
          [](HiddenWeights& self,
             const std::vector<at::Tensor>& outputs) -> std::optional<std::pair<std::string, int64_t>> {
            const auto found = self.leave(outputs);
            if (!found) return {};
            return std::pair(found->name, found->elements);
          },
          py::arg("outputs"))
      .def_property_readonly("is_done", &HiddenWeights::is_done);
  py::class_<Stage>(module, "Stage")
      .def(py::init<>())
      .def_readwrite("index", &Stage::index)
      .def_readwrite("name", &Stage::name)
      .def_readwrite("incoming", &Stage::incoming)
      .def_readwrite("outgoing", &Stage::outgoing)
      .def_readwrite("forward", &Stage::forward)
      .def_readwrite("input", &Stage::input)
      .def_readwrite("loss", &Stage::loss)
      .def_readwrite("auxiliary_losses", &Stage::auxiliary_losses)
      .def_readwrite("buffers", &Stage::buffers)
      .def_readwrite("versions", &Stage::versions)
      .def_readwrite("gaps", &Stage::gaps)
      .def_readwrite("recompute", &Stage::recompute)
      .def_readwrite("clip", &Stage::clip)
      .def_readwrite("clip_share", &Stage::clip_share)
      .def_property(
          "device", [](const Stage& self) { return self.device; },
          [](Stage& self, at::Device device) { self.device = device; });
}

using Scale = std::tuple<double, int64_t, std::vector<double>>;

// Its thread may be calling Python; its stages are Python's.
struct EndsWithoutLock {
  void operator()(Executor* executor) const {
    {
      py::gil_scoped_release release;
      executor->end_messages();
    }
    delete executor;
  }
};

}  // namespace

void bind_pipeline(py::module_& module) {
  bind_weights(module);
  bind_records(module);
  bind_stage(module);
  py::class_<Actions>(module, "PlanActions")
      .def(py::init(&actions_of), py::arg("plan"), py::arg("rank"))
      .def("__len__", [](const Actions& self) { return self.list.size(); })
      // As in a plan's file; after a run whose order was found, what was done.
      .def_property_readonly("lines", [](const Actions& self) {
        std::vector<std::string> lines;
        for (const schedule::Action& action : self.list) lines.push_back(to_text(action));
        return lines;
      });
  module.def(
      "forwards_only",
      [](const std::vector<std::pair<int, int>>& edges, const std::vector<int>& rank_of_stage, int rank,
         int64_t micro_batches) {
        return Actions{forwards_only(ends_of(edges), rank_of_stage, rank, micro_batches), {}};
      },
      py::arg("edges"), py::arg("rank_of_stage"), py::arg("rank"), py::arg("micro_batches"));
  py::class_<Executor, std::unique_ptr<Executor, EndsWithoutLock>>(module, "Executor")
      .def(py::init([](std::shared_ptr<tensors::Communicator> ranks, std::vector<Stage> stages,
                       const std::vector<std::pair<int, int>>& edges, std::vector<int> rank_of_stage,
                       std::vector<int> frames, int replicas, bool global_norm, int norm_delay,
                       std::vector<int> norm_ranks, std::optional<std::pair<double, int64_t>> loss_scale) {
             Arrangement arrangement{ends_of(edges), std::move(rank_of_stage), std::move(frames),
                                     ranks->world() / replicas, replicas};
             Telling telling{.global_norm = global_norm, .delay = norm_delay, .ranks = std::move(norm_ranks)};
             if (loss_scale) telling.loss_scale = {.initial = loss_scale->first, .interval = loss_scale->second};
             // Ranks meet in it, while a thread of Gloo's may have to free tensors of Python's.
             py::gil_scoped_release release;
             return std::unique_ptr<Executor, EndsWithoutLock>(new Executor(
                 std::move(ranks), std::move(stages), std::move(arrangement), std::move(telling), look_for_signals));
           }),
           py::arg("ranks"), py::arg("stages"), py::arg("edges"), py::arg("rank_of_stage"), py::arg("frames"),
           py::kw_only(), py::arg("replicas") = 1, py::arg("global_norm") = false, py::arg("norm_delay") = 0,
           py::arg("norm_ranks") = std::vector<int>(), py::arg("loss_scale") = py::none())
      // Squares of the last steps' gradients; of the loss's scale (now, finite steps in a row, scales of the steps
      // under way), or none: it is on another rank, or nowhere.
      .def_property(
          "heard",
          [](const Executor& self) -> std::tuple<std::map<int64_t, double>, std::optional<Scale>> {
            Heard heard = self.heard();
            if (!heard.scale) return {std::move(heard.squares), std::nullopt};
            const auto& [scale, finite, under_way] = *heard.scale;
            return {std::move(heard.squares), Scale(scale, finite, under_way)};
          },
          [](Executor& self, const std::tuple<std::map<int64_t, double>, std::optional<Scale>>& given) {
            Heard heard{.squares = std::get<0>(given), .scale = {}};
            if (const auto& scale = std::get<1>(given))
              heard.scale = {std::get<0>(*scale), std::get<1>(*scale), std::get<2>(*scale)};
            self.restore(std::move(heard));
          })
      .def(
          "run",
          [](Executor& self, Actions& actions, bool training, uint64_t seed, int64_t first_micro_batch, int step_size,
             double smoothing_radius, const py::object& progress) {
            Progress told(progress);
            RunOptions options{training, seed, first_micro_batch, step_size, smoothing_radius, {}};
            // By reference: the executor keeps its options, and must not keep an object of Python's.
            if (!progress.is_none()) options.progress = [&told](const Record& record) { told(record); };
            py::gil_scoped_release release;
            return actions.ready ? self.run_ready(*actions.ready, actions.list, options)
                                 : self.run(actions.list, options);
          },
          py::arg("actions"), py::kw_only(), py::arg("training") = true, py::arg("seed") = 0,
          py::arg("first_micro_batch") = 0, py::arg("step_size") = 0, py::arg("smoothing_radius") = 0,
          py::arg("progress") = py::none(), py::keep_alive<0, 2>());  // the record speaks of the actions
}

}  // namespace ddip::bindings
