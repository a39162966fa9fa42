// Cuts against brute force: every cut of a small graph, costed by the definition.
#include <gtest/gtest.h>

#include <cstdio>

#include "ddip/base/testing/one_line.h"
#include "ddip/partition/chain.h"
#include "ddip/partition/placement.h"
#include "ddip/partition/search.h"
#include "ddip/partition/testing/brute_force.h"

namespace ddip::partition {
namespace {

using testing::best_by_force;
using testing::one_each;
using testing::reference_cost;
using testing::some_costs;

Graph u_net(size_t depth) {
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  for (size_t level = 0; level < depth; ++level) nodes.push_back({"down" + std::to_string(level), 3, 6, 40, 100});
  nodes.push_back({"bottom", 3, 6, 80, 50});
  for (size_t level = depth; level-- > 0;) nodes.push_back({"up" + std::to_string(level), 3, 6, 40, 100});
  const auto bytes = [&](size_t index) { return uint64_t{1000} >> std::min(index, 2 * depth - index); };
  for (size_t index = 0; index + 1 < nodes.size(); ++index) edges.push_back({index, index + 1, "", "", bytes(index)});
  for (size_t level = 0; level + 1 < depth; ++level) edges.push_back({level, 2 * depth - level, "", "", bytes(level)});
  edges.push_back({depth - 1, depth + 1, "", "", bytes(depth - 1)});
  return {nodes, edges};
}

TEST(Cost, is_what_the_definition_says_for_every_cut_of_many_graphs) {
  int cuts = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = testing::some_graph(seed, 3 + seed % 5);
    const Costs costs = some_costs(seed);
    for (const std::vector<size_t>& devices : {one_each(3), std::vector<size_t>{0, 1, 0}, {1, 0, 1}}) {
      testing::every_cut(graph, devices, [&](const Cut& cut) {
        ++cuts;
        const Cost cost = cost_of(graph, cut, costs);
        const testing::Reference expected = reference_cost(graph, cut, costs);
        uint64_t most = 0;
        for (const DeviceCost& device : cost.devices) most = std::max(most, device.memory_bytes);
        ASSERT_NEAR(cost.slowest_ms, expected.slowest_ms, 1e-9);
        ASSERT_EQ(cost.link_bytes, expected.link_bytes);
        ASSERT_EQ(most, expected.most_memory);
        ASSERT_EQ(cost.excess_bytes > 0, costs.memory_cap > 0 && most > costs.memory_cap);
      });
    }
  }
  EXPECT_GT(cuts, 2000);
}

TEST(Cost, of_two_stages_by_hand) {
  const Graph graph({{"a", 1, 2, 10, 100}, {"b", 3, 4, 20, 200}, {"c", 5, 6, 30, 300}},
                    {{0, 1, "", "", 40}, {1, 2, "", "", 50}, {0, 2, "", "", 40}});
  const Cut cut{{0, 0, 1}, {0, 1}};
  Costs costs{.link_bytes_per_ms = 10, .recompute = true, .memory_cap = 0, .parameter_copies = 2};
  const Cost cost = cost_of(graph, cut, costs);
  EXPECT_DOUBLE_EQ(cost.devices[0].compute_ms, 1 + 2 + 3 + 4 + 1 + 3);
  EXPECT_DOUBLE_EQ(cost.devices[1].compute_ms, 11);  // the last stage never recomputes
  EXPECT_EQ(cost.link_bytes, 90U);
  EXPECT_DOUBLE_EQ(cost.devices[0].link_ms, 9);
  EXPECT_EQ(cost.devices[0].memory_bytes, 2 * 30 + 300U);  // no input from a stage; one set of activations
  EXPECT_EQ(cost.devices[1].memory_bytes, 2 * 30 + 300U);
  EXPECT_DOUBLE_EQ(speed_up(graph, cost), 21.0 / 14);
  EXPECT_DOUBLE_EQ(bubble(cost), 1 - 25.0 / 28);
  EXPECT_DOUBLE_EQ(bubble_with_flush(cost, 4), 1 - 4 * 25.0 / (2 * (25 + 3 * 14)));
  const Cost even{.devices = {{.compute_ms = 5}, {.compute_ms = 5}, {.compute_ms = 5}}, .slowest_ms = 5};
  EXPECT_DOUBLE_EQ(bubble_with_flush(even, 8), 2.0 / 10);  // the textbook's (P−1)/(m+P−1)
  costs.link_bytes_per_ms = 1;
  EXPECT_DOUBLE_EQ(cost_of(graph, cut, costs).slowest_ms, 90);  // what compute does not hide
}

TEST(Chain, is_the_optimum_of_many_seeded_chains) {
  int feasible = 0, refused = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const size_t layers = 1 + seed % 9;
    const size_t stages = 1 + (seed / 9) % std::min<size_t>(layers, 5);
    const Graph graph = testing::some_chain(seed, layers);
    const Costs costs = some_costs(seed);
    ASSERT_TRUE(graph.is_chain());
    const testing::Reference best = best_by_force(graph, one_each(stages), costs);
    if (best.slowest_ms == std::numeric_limits<double>::infinity()) {
      EXPECT_THROW(cut_chain(graph, stages, costs), ConfigError) << seed;
      ++refused;
      continue;
    }
    ++feasible;
    const Cut cut = cut_chain(graph, stages, costs);
    check_cut(graph, cut);
    const testing::Reference cost = reference_cost(graph, cut, costs);
    ASSERT_NEAR(cost.slowest_ms, best.slowest_ms, 1e-9) << seed;
    ASSERT_EQ(cost.link_bytes, best.link_bytes) << seed;
    if (costs.memory_cap > 0) {
      ASSERT_LE(cost.most_memory, costs.memory_cap) << seed;
    }
  }
  EXPECT_GT(feasible, 200);
  EXPECT_GT(refused, 10);
}

TEST(Search, is_within_a_tenth_of_the_best_on_nearly_all_of_200_seeded_graphs) {
  int near = 0, exact = 0, compared = 0;
  double worst = 1;
  for (uint64_t seed = 0; compared < 200; ++seed) {
    const size_t layers = 4 + seed % 9;  // up to 12
    const size_t stages = 2 + seed % 3;
    const Graph graph = testing::some_graph(seed, layers);
    Costs costs = some_costs(seed);
    const testing::Reference best = best_by_force(graph, one_each(stages), costs);
    if (best.slowest_ms == std::numeric_limits<double>::infinity()) {
      EXPECT_THROW(search_cut(graph, stages, costs), ConfigError);
      continue;
    }
    ++compared;
    const Cut cut = search_cut(graph, stages, costs, {.seed = seed});
    check_cut(graph, cut);
    const testing::Reference cost = reference_cost(graph, cut, costs);
    if (costs.memory_cap > 0) {
      ASSERT_LE(cost.most_memory, costs.memory_cap) << seed;
    }
    ASSERT_GE(cost.slowest_ms, best.slowest_ms - 1e-9) << seed;
    const double ratio = cost.slowest_ms / best.slowest_ms;
    near += ratio <= 1.1;
    exact += ratio <= 1 + 1e-9;
    worst = std::max(worst, ratio);
  }
  std::printf("search: %d of 200 graphs within 1.1 times the best cut, %d are the best; the worst is %.3f times\n",
              near, exact, worst);
  EXPECT_GE(near, 195);
}

TEST(Search, the_same_seed_gives_the_same_cut) {
  const Graph graph = testing::some_graph(7, 40);
  const Costs costs{.link_bytes_per_ms = 5};
  EXPECT_EQ(search_cut(graph, 4, costs, {.seed = 3}).stage_of, search_cut(graph, 4, costs, {.seed = 3}).stage_of);
}

TEST(Model, is_refused_more_stages_than_layers_in_one_line) {
  const Graph graph = testing::some_graph(1, 3);
  EXPECT_EQ(config_error([&] { cut_model(graph, 4, {}); }),
            "4 stages for 3 layers; expected no more stages than layers");
  EXPECT_EQ(config_error([&] { cut_model(graph, 0, {}); }), "0 stages; expected at least one");
  EXPECT_EQ(config_error([&] { cut_model(testing::some_chain(1, 3), 2, {.memory_cap = 1}); }),
            "no cut into 2 stages fits in 1 bytes per device");
}

TEST(Mirrored, a_u_nets_skips_never_cross_a_link_at_any_depth) {
  for (size_t depth = 2; depth <= 5; ++depth) {
    for (size_t devices = 2; devices <= depth + 1; ++devices) {
      const Graph graph = u_net(depth);
      const auto cut = cut_mirrored(graph, devices, {});
      ASSERT_TRUE(cut) << depth << devices;
      check_cut(graph, *cut);
      ASSERT_EQ(cut->devices(), devices);
      ASSERT_EQ(cut->stages(), 2 * devices - 1);
      for (size_t stage = 0; stage < cut->stages(); ++stage)
        EXPECT_EQ(cut->device_of[stage], std::min(stage, 2 * devices - 2 - stage));
      for (size_t level = 0; level < depth; ++level)
        EXPECT_EQ(cut->device_of[cut->stage_of[level]], cut->device_of[cut->stage_of[2 * depth - level]]);
      EXPECT_EQ(cut_mixed(graph, devices, {}, {}, 100).device_of, cut->device_of);
    }
  }
}

TEST(Mirrored, is_the_fastest_of_all_nested_cuts) {
  // Times by seed; the reference tries every way to lay the levels of the net on the devices.
  for (uint64_t seed = 0; seed < 50; ++seed) {
    testing::Random random(seed);
    const Graph plain = u_net(4);
    std::vector<Node> nodes = plain.nodes();
    for (Node& node : nodes) node.forward_ms = static_cast<double>(random.below(50));
    const Graph graph(nodes, plain.edges());
    const Costs costs{.link_bytes_per_ms = static_cast<double>(10 + random.below(50)),
                      .recompute = false,
                      .memory_cap = random.chance(50) ? 0 : 2000 + random.below(2000)};
    const size_t devices = 2 + seed % 2;
    double best = std::numeric_limits<double>::infinity();
    std::vector<size_t> stages = one_each(devices);
    for (size_t device = devices - 1; device-- > 0;) stages.push_back(device);
    testing::every_cut(graph, stages, [&](const Cut& cut) {
      for (size_t level = 0; level < 4; ++level)
        if (stages[cut.stage_of[level]] != stages[cut.stage_of[8 - level]]) return;
      const testing::Reference cost = reference_cost(graph, cut, costs);
      if (costs.memory_cap == 0 || cost.most_memory <= costs.memory_cap) best = std::min(best, cost.slowest_ms);
    });
    const auto cut = cut_mirrored(graph, devices, costs);
    ASSERT_EQ(cut.has_value(), best < std::numeric_limits<double>::infinity()) << seed;
    if (cut) {
      ASSERT_NEAR(reference_cost(graph, *cut, costs).slowest_ms, best, 1e-9) << seed;
    }
  }
}

TEST(Mirrored, there_is_none_of_a_chain_or_of_one_device) {
  EXPECT_FALSE(cut_mirrored(testing::some_chain(1, 6), 2, {}));
  EXPECT_FALSE(cut_mirrored(u_net(3), 1, {}));
  EXPECT_FALSE(cut_mirrored(u_net(3), 2, {.memory_cap = 10}));
}

TEST(Mixed, respects_the_cap_where_one_stage_per_device_cannot) {
  int rescued = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = seed % 2 == 0 ? testing::some_graph(seed, 8) : testing::some_chain(seed, 8);
    Costs costs = some_costs(seed);
    costs.memory_cap = 3000 + seed * 60;
    const bool plain = best_by_force(graph, one_each(2), costs).slowest_ms < std::numeric_limits<double>::infinity();
    try {
      const Cut cut = cut_mixed(graph, 2, costs, {.seed = seed});
      check_cut(graph, cut);
      ASSERT_LE(reference_cost(graph, cut, costs).most_memory, costs.memory_cap);
      ASSERT_EQ(cut.devices(), 2U);
      for (size_t stage = 1; stage < cut.stages(); ++stage) ASSERT_NE(cut.device_of[stage], cut.device_of[stage - 1]);
      rescued += !plain;
    } catch (const ConfigError&) {
      EXPECT_FALSE(plain) << seed;
    }
  }
  std::printf("mixed: %d graphs fit only with several stages on a device\n", rescued);
}

TEST(Mixed, is_slower_than_one_stage_per_device_only_where_it_is_the_mirror) {
  int faster = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = testing::some_graph(seed, 10);
    Costs costs = some_costs(seed);
    costs.memory_cap = 0;
    const double plain = cost_of(graph, cut_model(graph, 3, costs), costs).slowest_ms;
    const Cut cut = cut_mixed(graph, 3, costs);
    const double mixed = cost_of(graph, cut, costs).slowest_ms;
    const auto mirrored = cut_mirrored(graph, 3, costs);
    const bool is_mirror = mirrored && mirrored->stage_of == cut.stage_of;
    EXPECT_LE(mixed, (is_mirror ? 1.5 : 1.0) * plain + 1e-6) << seed;
    faster += mixed < plain - 1e-6;
  }
  EXPECT_GT(faster, 5);
}

TEST(Mixed, a_chain_stays_one_stage_per_device) {
  // Bytes on links and nothing to gain: each layer alike.
  const Graph graph({{"a", 1, 1, 1, 1}, {"b", 1, 1, 1, 1}, {"c", 1, 1, 1, 1}, {"d", 1, 1, 1, 1}},
                    {{0, 1, "", "", 9}, {1, 2, "", "", 9}, {2, 3, "", "", 9}});
  EXPECT_EQ(cut_mixed(graph, 2, {.link_bytes_per_ms = 100}).stage_of, (std::vector<size_t>{0, 0, 1, 1}));
}

TEST(Costs, that_cannot_be_are_refused) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (double link : {nan, inf, -5.0, 1e-320}) {
    EXPECT_THROW(check_costs({.link_bytes_per_ms = link}), ConfigError) << link;
  }
  for (double copies : {nan, inf, -1.0}) EXPECT_THROW(check_costs({.parameter_copies = copies}), ConfigError) << copies;
  EXPECT_THROW(check_costs({.memory_cap = uint64_t{1} << 60}), ConfigError);
  check_costs({});
  check_costs({.link_bytes_per_ms = 1e6, .memory_cap = uint64_t{1} << 40});
}

}  // namespace
}  // namespace ddip::partition
