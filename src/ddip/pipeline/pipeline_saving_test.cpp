// Runs that were saved and go on in other processes, each beside a run that drained at the same place.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "ddip/checkpoint/store.h"
#include "ddip/pipeline/testing/folder.h"
#include "ddip/pipeline/testing/training.h"

namespace ddip::pipeline {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;

template <typename Kind, typename Options>
MakeOptimizer made_by(const Options& options) {
  return [options](auto parameters) { return std::make_unique<Kind>(parameters, options); };
}

const MakeOptimizer adam = made_by<optim::Adam>(optim::AdamOptions(0.01));
const MakeOptimizer adamw = made_by<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.1));

// Batch norm keeps buffers, dropout draws numbers: each micro-batch of the whole training its own.
torch::nn::Sequential with_buffers() {
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Tanh(),
                              torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.3),
                              torch::nn::Linear(8, 3)};
  model->to(at::kDouble);
  return model;
}

struct Training {
  std::string name;
  MakeOptimizer make = sgd;
  PipelineOptions options;
  std::function<torch::nn::Sequential()> model = [] { return mlp(3); };
  int ranks = 2, stages = 2;
  std::function<void(Pipeline&)> halfway = [](Pipeline&) {};  // by hand, before it is saved
  MakeOptimizer make_again;                                   // what the pipeline that loads is made with; empty: make
};

Training with(std::string name, MakeOptimizer make, PipelineOptions options) {
  options.micro_batches = 4;
  return {.name = std::move(name), .make = std::move(make), .options = std::move(options)};
}

std::unique_ptr<Pipeline> made(const std::shared_ptr<tensors::Communicator>& ranks, const Training& run,
                               bool again = false) {
  torch::nn::Sequential model = run.model();
  if (again) {  // what is loaded has to come from the file: nothing here is as it was
    at::NoGradGuard quiet;
    for (at::Tensor& one : model->parameters()) one.mul_(1.5);
    for (at::Tensor& one : model->buffers()) one.add_(3);
  }
  return std::make_unique<Pipeline>(ranks, cut(model, run.stages), mse,
                                    again && run.make_again ? run.make_again : run.make, run.options);
}

Pairs part_of(const Pairs& all, Pipeline& pipe, size_t begin, size_t end) {
  Pairs found;
  for (size_t i = begin; i < end; ++i)  // a replica has batches of its own
    found.emplace_back(all[i].first * (1 + pipe.replica()), all[i].second);
  return found;
}

void require_equal(const State& a, const State& b, const std::string& what) {
  require(a.size() == b.size(), what + ": as many tensors");
  for (const auto& [name, tensor] : a) require(b.contains(name) && b.at(name).equal(tensor), what + ": " + name);
}

// What torch's own archive has of it: another way to look at it than the one that saves it.
std::string archive_of(optim::Optimizer& optimizer) {
  std::ostringstream said;
  said.precision(17);
  for (auto& group : optimizer.param_groups()) {
    said << group.options().get_lr() << ";";
    for (const at::Tensor& parameter : group.params()) {
      auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      torch::serialize::OutputArchive archive;
      found->second->serialize(archive);
      std::stringstream bytes;
      archive.save_to(bytes);
      torch::serialize::InputArchive read;
      read.load_from(bytes);
      for (const std::string& key : read.keys()) {
        c10::IValue value;
        read.read(key, value);
        if (value.isTensor()) value = value.toTensor().contiguous();
        said << key << "=" << value << ";";
      }
    }
  }
  return said.str();
}

void require_resumes(const Training& run) {
  Folder folder;
  const auto first = [&](Pipeline& pipe) {
    pipe.run(part_of(data(6, 12), pipe, 0, 3));
    run.halfway(pipe);
  };
  on_ranks(run.ranks, [&](const auto& ranks) {
    auto pipe = made(ranks, run);
    first(*pipe);
    pipe->save(folder.path());
  });
  on_ranks(run.ranks, [&](const auto& ranks) {
    const auto what = [&](const char* when) { return run.name + ", " + when; };
    auto whole = made(ranks, run), resumed = made(ranks, run, true), without = made(ranks, run);
    first(*whole);
    resumed->run(part_of(data(2, 12), *resumed, 0, 2));  // it has a state of its own, which must go
    resumed->load(folder.path());
    require_equal(whole->state(), resumed->state(), what("loaded"));
    for (int stage : whole->stages()) {
      if (!whole->optimizer(stage)) continue;
      require(archive_of(*whole->optimizer(stage)) == archive_of(*resumed->optimizer(stage)), what("its optimizer"));
    }
    // Twice, because what is late (norms, rates) is seen late.
    for (size_t part : {3, 4}) {
      const Pairs batches = part_of(data(6, 12), *whole, part, part == 4 ? 6 : 4);
      const Report expected = whole->run(batches), got = resumed->run(batches), other = without->run(batches);
      require(expected.losses == got.losses, what("losses"));
      require(expected.losses != other.losses, what("the training before it matters"));
      require_equal(whole->state(), resumed->state(), what("ran on"));
      require(whole->evaluate(batches).losses == resumed->evaluate(batches).losses, what("evaluated"));
    }
  });
}

double halved(int64_t step) { return 1 / (1 + static_cast<double>(step) / 7); }

}  // namespace

TEST(CppPipelineSaving, the_scale_of_a_loss_in_half_precision_is_saved) {
  for (const char* schedule : {"1f1b", "async_1f1b"}) {
    Folder folder;
    const auto fresh = [&](const auto& ranks) {
      return std::make_unique<Pipeline>(
          ranks, cut(mlp(1, at::kFloat), 2), mse, sgd,
          PipelineOptions{.schedule = schedule, .micro_batches = 4, .precision = "fp16", .loss_scale = {1 << 20, 4}});
    };
    on_ranks(2, [&](const auto& ranks) {
      const Pairs before = data(4, 12, 0, at::kFloat), later = data(10, 12, 5, at::kFloat);
      auto whole = fresh(ranks), again = fresh(ranks), without = fresh(ranks);
      const double saved = *whole->run(before).stages.back().loss_scale;
      require(saved < (1 << 20), "it has learned something");
      whole->save(folder.path());
      again->load(folder.path());
      const Report expected = whole->run(later), got = again->run(later), other = without->run(later);
      require(expected.losses == got.losses, "losses");
      require_equal(whole->state(), again->state(), "ran on");
      require(expected.stages.back().loss_scale == got.stages.back().loss_scale, "the scale at the end");
      const auto left_out = [](const Report& report) { return report.stages.front().left_out; };
      require(left_out(expected) == left_out(got) && left_out(got) < left_out(other), "what was known is known");
    });
  }
}

TEST(CppPipelineSaving, a_loaded_run_goes_on_as_one_that_drained_there) {
  const auto momenta = optim::RMSpropOptions(0.01).momentum(0.5).centered(true);
  for (const Training& run : {
           with("1f1b, sgd", sgd, {.schedule = "1f1b"}),
           with("1f1b, plain sgd", made_by<optim::SGD>(optim::SGDOptions(0.05)), {.schedule = "1f1b"}),
           with("1f1b, rmsprop", made_by<optim::RMSprop>(momenta), {.schedule = "1f1b"}),
           with("stash, adagrad", made_by<optim::Adagrad>(optim::AdagradOptions(0.01).lr_decay(0.1)), {}),
           with("stash, sgd", sgd, {.staleness = "stash"}),
           with("stash, adamw", adamw, {.staleness = "stash"}),
           with("msnag", sgd, {.staleness = "msnag"}),
           with("adam", adam, {.staleness = "adam"}),
           with("adamw", adamw, {.staleness = "adamw", .accumulate = 3}),
           with("2bw", adam, {.schedule = "2bw", .accumulate = 4}),
       })
    require_resumes(run);
}

TEST(CppPipelineSaving, what_a_policy_carries_is_saved) {
  // Long enough that it anneals before and after.
  const staleness::Options annealing{.pipemare = {.annealing_steps = 18}};
  for (const Training& run : {
           with("pipemare, sgd", sgd, {.staleness = "pipemare", .staleness_options = annealing}),
           with("pipemare, adamw", adamw, {.staleness = "pipemare", .staleness_options = annealing}),
           with("gap_aware, sgd", sgd, {.staleness = "gap_aware"}),
           with("gap_aware, adam", adam, {.staleness = "gap_aware", .scheduler = halved}),
       })
    require_resumes(run);
}

TEST(CppPipelineSaving, rates_go_on_where_they_were) {
  require_resumes(with("sgd", sgd, {.schedule = "1f1b", .scheduler = halved}));
  require_resumes(with("msnag", sgd, {.staleness = "msnag", .scheduler = halved}));
  Training by_hand = with("by hand", adam, {.staleness = "adam", .scheduler = halved});
  by_hand.halfway = [](Pipeline& pipe) {
    for (int stage : pipe.stages()) {
      auto& options = static_cast<optim::AdamOptions&>(pipe.optimizer(stage)->param_groups()[0].options());
      options.lr(options.lr() * 0.3).betas({0.7, 0.95}).weight_decay(0.01);
    }
  };
  require_resumes(by_hand);
  Training another = with("another rate", sgd, {.staleness = "msnag", .scheduler = halved});
  another.make_again = made_by<optim::SGD>(optim::SGDOptions(0.5).momentum(0.1));
  require_resumes(another);
  const MakeOptimizer groups = [](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> matrices, vectors;
    for (const at::Tensor& one : parameters) (one.dim() > 1 ? matrices : vectors).push_back(one);
    auto options = std::make_unique<optim::SGDOptions>(0.01);
    options->momentum(0.5);
    std::vector<optim::OptimizerParamGroup> both{optim::OptimizerParamGroup(vectors, std::move(options)),
                                                 optim::OptimizerParamGroup(matrices)};
    return std::make_unique<optim::SGD>(both, optim::SGDOptions(0.05).momentum(0.9));
  };
  require_resumes(with("groups", groups, {.staleness = "gap_aware", .scheduler = halved}));
}

TEST(CppPipelineSaving, buffers_and_random_numbers_go_on_where_they_were) {
  for (Training run : {with("1f1b", sgd, {.schedule = "1f1b"}), with("stash", adam, {.staleness = "stash"}),
                       with("recomputed", sgd, {.staleness = "msnag", .recompute = true})}) {
    run.model = with_buffers;
    require_resumes(run);
  }
}

TEST(CppPipelineSaving, norms_of_earlier_steps_are_saved) {
  require_resumes(with("late", sgd, {.staleness = "stash", .clip = 0.05, .clipping = "global"}));
  require_resumes(with("at once", sgd, {.schedule = "1f1b", .clip = 0.05, .clipping = "global"}));
}

TEST(CppPipelineSaving, replicas_and_stages_that_share_a_rank_each_get_their_own) {
  Training replicas = with("replicas", sgd, {.staleness = "msnag", .replicas = 2});
  replicas.model = with_buffers;
  replicas.ranks = 4;
  require_resumes(replicas);
  Training shared = with("shared", adam, {.schedule = "interleaved"});
  shared.stages = 4;
  require_resumes(shared);
  Training tanh_alone = with("a stage without weights", sgd, {.staleness = "stash"});
  tanh_alone.model = [] { return mlp(1); };
  tanh_alone.ranks = tanh_alone.stages = 3;
  require_resumes(tanh_alone);
}

// Nothing has stepped yet: who has must forget it.
TEST(CppPipelineSaving, a_pipeline_that_has_not_run_is_loaded_into_one_that_has) {
  for (const Training& run : {with("sgd", sgd, {.staleness = "pipemare", .clip = 0.05, .clipping = "global"}),
                              with("adam", adam, {.staleness = "adam", .scheduler = halved})}) {
    Folder folder;
    on_ranks(2, [&](const auto& ranks) { made(ranks, run)->save(folder.path()); });
    on_ranks(2, [&](const auto& ranks) {
      auto fresh = made(ranks, run), loaded = made(ranks, run, true);
      loaded->run(data(3, 12));
      loaded->load(folder.path());
      require(fresh->run(data(3, 12)).losses == loaded->run(data(3, 12)).losses, run.name + ": losses");
      require_equal(fresh->state(), loaded->state(), run.name);
    });
  }
}

// --- saves that fail

TEST(CppPipelineSaving, the_newest_save_is_loaded_and_one_before_it_is_kept) {
  Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    const Training run = with("", sgd, {.staleness = "msnag"});
    auto pipe = made(ranks, run);
    for (int save = 0; save < 3; ++save) {
      pipe->run(data(2, 12));
      pipe->save(folder.path());
    }
    auto younger = made(ranks, run);
    younger->run(data(1, 12));
    younger->save(folder.path());
    pipe->load(folder.path());
    require_equal(pipe->state(), younger->state(), "the last one saved");
    ranks->barrier();
    const auto files = std::distance(fs::directory_iterator(folder.path()), {});
    require(files == 6, fmt::format("two manifests and four files, not {}", files));
  });
}

TEST(CppPipelineSaving, a_save_that_fails_half_way_leaves_the_one_before) {
  Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    const Training run = with("", adam, {.staleness = "adam"});
    auto pipe = made(ranks, run), loaded = made(ranks, run);
    pipe->run(data(2, 12));
    pipe->save(folder.path());
    const State saved = pipe->state();
    pipe->run(data(2, 12));
    auto fails = [&](const std::string& rank_0, const std::string& rank_1) {
      const std::string said = refusal([&] { pipe->save(folder.path()); });
      require(said.find(ranks->rank() == 0 ? rank_0 : rank_1) != std::string::npos, said);
      ranks->barrier();
      const auto files = std::distance(fs::directory_iterator(folder.path()), {});
      loaded->load(folder.path());
      require_equal(saved, loaded->state(), "the one before");
      ranks->barrier();
      return files;
    };
    // Rank 1's disk is full after some bytes of it.
    if (ranks->rank() == 1) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit little{100, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &little);
    }
    require(fails("rank 1: ", "File too large") == 3, "nothing is left of it");
    if (ranks->rank() == 1) {
      const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &any);
    }
    // The manifest cannot be written: its place is taken.
    const fs::path in_the_way = folder.file(2, fmt::format("json.{}.part", ::getpid()));
    if (ranks->rank() == 0) fs::create_directory(in_the_way);
    ranks->barrier();
    require(fails("step-0000000002.json", "rank 0: ") == 4, "nothing is left of it");
    if (ranks->rank() == 0) fs::remove(in_the_way);
    ranks->barrier();
    pipe->save(folder.path());
    loaded->load(folder.path());
    require_equal(pipe->state(), loaded->state(), "and it can be saved again");
    // As a crash before the manifest would leave it.
    ranks->barrier();
    if (ranks->rank() == 0) fs::remove(folder.file(2, "json"));
    ranks->barrier();
    loaded->load(folder.path());
    require_equal(saved, loaded->state(), "after a crash, the one before");
  });
}

TEST(CppPipelineSaving, a_rank_that_dies_leaves_the_one_before) {
  Folder folder;
  const Training run = with("", sgd, {.staleness = "msnag"});
  on_ranks(2, [&](const auto& ranks) {
    auto pipe = made(ranks, run);
    pipe->save(folder.path());
    ranks->barrier();
    if (ranks->rank() == 1) ::_exit(0);
    require(refusal<std::exception>([&] { pipe->save(folder.path()); }) != "nothing", "it is noticed");
    ::_exit(0);
  });
  on_ranks(2, [&](const auto& ranks) {
    auto pipe = made(ranks, run, true);
    pipe->load(folder.path());
    require_equal(pipe->state(), made(ranks, run)->state(), "the one before");
  });
}

// --- refusals

namespace {

// One line on each rank, and the pipeline is as it was.
void require_refused(Pipeline& pipe, const fs::path& folder, const std::string& expected, int rank, int seen_on = -1) {
  const State before = pipe.state();
  const std::string said = refusal([&] { pipe.load(folder); });
  require(said.find(expected) != std::string::npos, expected + " is in: " + said);
  require(said.find('\n') == std::string::npos, "one line");
  if (seen_on >= 0)
    require(said.starts_with(fmt::format("rank {}: ", seen_on)) == (rank != seen_on), "who has seen it: " + said);
  require_equal(before, pipe.state(), "nothing is changed by: " + said);
}

const Training saved_run = with("", sgd, {.staleness = "msnag"});

void save_one(const Folder& folder, int times = 1) {
  on_ranks(2, [&](const auto& ranks) {
    auto pipe = made(ranks, saved_run);
    pipe->run(data(2, 12));
    for (int time = 0; time < times; ++time) pipe->save(folder.path());
  });
}

// After all refusals it trains as one that has met none.
void require_untouched(const std::shared_ptr<tensors::Communicator>& ranks, Pipeline& pipe, const Training& run) {
  auto twin = made(ranks, run);
  require(twin->run(data(3, 12)).losses == pipe.run(data(3, 12)).losses, "its training is as it was");
  require_equal(twin->state(), pipe.state(), "its training is as it was");
}

}  // namespace

TEST(CppPipelineSaving, another_pipelines_save_is_refused) {
  Folder folder;
  save_one(folder);
  struct Other {
    Training run;
    std::string said;
  };
  std::vector<Other> others;
  auto add = [&](const std::string& said, const std::function<void(Training&)>& change) {
    others.push_back({saved_run, said});
    change(others.back().run);
  };
  add("it was saved with stages 2, here it is 4", [](Training& run) { run.stages = 4; });
  add("it was saved with ranks 2, here it is 1", [](Training& run) { run.ranks = 1; });
  add("it was saved with ranks 2, here it is 4", [](Training& run) { run.ranks = 4, run.options.replicas = 2; });
  add("it was saved with placement [0,1], here it is [1,0]", [](Training& run) { run.options.placement = {1, 0}; });
  add("it was saved with staleness msnag, here it is stash", [](Training& run) { run.options.staleness = "stash"; });
  add("it was saved with staleness msnag, here it is none",
      [](Training& run) { run.options.schedule = "gpipe", run.options.staleness = "auto"; });
  add(", expected Float (8, ", [](Training& run) { run.model = [] { return mlp(3, at::kFloat); }; });
  add("model", [](Training& run) { run.model = [] { return mlp(1); }; });
  add("model", [](Training& run) { run.model = [] { return mlp(5); }; });
  add("model", [](Training& run) { run.model = with_buffers; });
  add("first_rates is Double (1), expected Double (2)", [](Training& run) {
    run.make = [](const std::vector<at::Tensor>& parameters) {
      std::vector<optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{parameters.front()});
      groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 1, parameters.end()));
      return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.05).momentum(0.9));
    };
  });
  add("parameters", [](Training& run) {
    run.make = [](std::vector<at::Tensor> parameters) {
      std::ranges::reverse(parameters);
      return sgd(parameters);
    };
  });
  for (const Other& other : others) {
    on_ranks(other.run.ranks, [&](const auto& ranks) {
      auto pipe = made(ranks, other.run);
      const std::string where = "ddip-saved-";
      require(refusal([&] { pipe->load(folder.path()); }).find(where) != std::string::npos, "it says where");
      require_refused(*pipe, folder.path(), other.said, ranks->rank());
    });
  }
}

TEST(CppPipelineSaving, another_optimizer_with_the_same_policy_is_refused) {
  Folder folder;
  Training run = with("", sgd, {.staleness = "stash"});
  on_ranks(2, [&](const auto& ranks) { made(ranks, run)->save(folder.path()); });
  run.make = adam;
  on_ranks(2, [&](const auto& ranks) {
    auto pipe = made(ranks, run);
    require_refused(*pipe, folder.path(),
                    fmt::format("it was saved with stage {}'s optimizer SGD, here it is Adam", ranks->rank()),
                    ranks->rank());
    require_untouched(ranks, *pipe, run);
  });
}

TEST(CppPipelineSaving, what_is_damaged_missing_or_foreign_is_refused) {
  Folder folder;
  save_one(folder, 2);
  const fs::path theirs = folder.file(2, "rank-1.safetensors"), manifest = folder.file(2, "json");
  auto contents = [](const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  auto write = [](const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  auto refused = [&](const fs::path& where, const std::string& said, int seen_on = -1) {
    on_ranks(2, [&](const auto& ranks) {
      auto pipe = made(ranks, saved_run);
      require_refused(*pipe, where, said, ranks->rank(), seen_on);
      require_untouched(ranks, *pipe, saved_run);
    });
  };
  const std::string good = contents(theirs), good_manifest = contents(manifest);
  fs::remove(theirs);
  refused(folder.path(), "No such file or directory; remove step-0000000002.json to go on from step 1", 1);
  write(theirs, good.substr(0, good.size() - 8));
  refused(folder.path(), "cut off", 1);
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write(theirs, flipped);
  refused(folder.path(), "its hash differs", 1);
  write(theirs, contents(folder.file(2, "rank-0.safetensors")));
  refused(folder.path(), "its hash differs", 1);
  write(theirs, "no tensors");
  refused(folder.path(), "rank-1.safetensors", 1);
  write(theirs, good);
  write(manifest, good_manifest.substr(0, good_manifest.size() / 2));
  refused(folder.path(), "it is damaged");
  fs::remove_all(folder.path());
  refused(folder.path(), "no pipeline is saved there");
  write(folder.path(), "a file");
  refused(folder.path(), "it is a file; expected a folder that Pipeline::save wrote");
  fs::remove(folder.path());
  checkpoint::Store(folder.path()).save({1, R"({"epoch": 3})", {{"rank-0", {}}, {"rank-1", {}}}});
  refused(folder.path(), "it has checkpoints, but of no pipeline");
  checkpoint::Store(folder.path()).save({2, R"({"what": "ddip pipeline of Python"})", {{"stage-0", {}}}});
  refused(folder.path(), "Python's pipe.save wrote it; expected a pipeline of a C++ program");
  on_ranks(2, [&](const auto& ranks) {
    const std::string said = refusal([&] { made(ranks, saved_run)->save(folder.path()); });
    require(said.find("it has checkpoints of something else; expected a folder of its own") != std::string::npos, said);
  });
  EXPECT_EQ(checkpoint::Store(folder.path()).newest(), 2u);
  write(folder.file(3, "json"), "cut off");
  on_ranks(2, [&](const auto& ranks) {
    const std::string said = refusal([&] { made(ranks, saved_run)->save(folder.path()); });
    require(said.find("it has checkpoints of something else") != std::string::npos,
            "a damaged one does not make it ours");
  });
}

// Measured again, a model may be cut elsewhere.
TEST(CppPipelineSaving, a_model_that_is_cut_elsewhere_the_next_time_can_be_cut_as_it_was) {
  Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    const auto model = [] {
      torch::manual_seed(0);
      torch::nn::Sequential layers(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                                   torch::nn::Tanh(), torch::nn::Linear(8, 3));
      layers->to(at::kDouble);
      return layers;
    };
    const auto pipe_of = [&](const std::vector<Part>& parts) {
      return std::make_unique<Pipeline>(ranks, parts, mse, sgd,
                                        PipelineOptions{.schedule = "1f1b", .micro_batches = 4});
    };
    auto pipe = pipe_of(cut_at(model(), {1, 5}));
    pipe->run(data(2, 8));
    pipe->save(folder.path());
    auto other = pipe_of(cut_at(model(), {3, 5}));
    State before;
    for (const auto& [name, tensor] : other->state()) before[name] = tensor.clone();
    const std::string said = refusal([&] { other->load(folder.path()); });
    require(said.find("it was cut elsewhere, into stages that begin with 0, 1, here with 0, 3; cut(model, "
                      "saved_stages(folder)), with the placement of then, cuts it as that one") != std::string::npos,
            said);
    require(furthest(before, other->state()) == 0, "nothing has changed");
    auto again = pipe_of(cut(model(), saved_stages(folder.path())));
    again->load(folder.path());
    require(furthest(pipe->state(), again->state()) == 0, "loaded");
    require(refusal([&] { cut(model(), {{"0", "1"}, {"3", "2", "4"}}); }) ==
                "stages of the layers 0, 1, 3, 2, 4: expected the model's, in their order: 0, 1, 2, 3, 4",
            "another order");
    require(refusal([&] { saved_stages("/nowhere"); }) == "/nowhere: no pipeline is saved there", "nothing there");
  });
}

TEST(CppPipelineSaving, what_cannot_be_saved_or_loaded_says_so) {
  Folder folder;
  on_ranks(2, [&](const auto& ranks) {
    struct Own : optim::SGD {
      using optim::SGD::SGD;
    };
    const Training run = with("", made_by<Own>(optim::SGDOptions(0.05)), {.schedule = "1f1b"});
    std::string said = refusal([&] { made(ranks, run)->save(folder.path()); });
    require(said.find("what its optimizer carries is not known; expected SGD, Adam") != std::string::npos, said);
    require(said.find("stage ") == 0, said);
    require(!fs::exists(folder.path()), "nothing was made");
    auto pipe = made(ranks, saved_run);
    said = refusal([&] { pipe->save("/dev/null/here"); });
    require(said.find("Not a directory") != std::string::npos, said);
    pipe->save(folder.path());
    Training written = saved_run;
    written.options.ledger = folder.path() / "ledger";
    auto with_ledger = made(ranks, written);
    said = refusal([&] { with_ledger->load(folder.path()); });
    require(said.find("expected a pipeline without one") != std::string::npos, said);
    with_ledger->save(folder.path());
  });
}

}  // namespace ddip::pipeline
