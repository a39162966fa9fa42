#include "ddip/partition/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"
#include "ddip/partition/draw.h"
#include "ddip/partition/placement.h"
#include "ddip/partition/testing/brute_force.h"

namespace ddip::partition {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

Plan small_plan() {
  Plan plan;
  plan.model = "net.py:make";
  plan.graph =
      Graph({{"stem", 1, 2, 400, 800}, {"body", 2, 3, 400, 900}, {"head", 1, 1, 40, 80}},
            {{0, 1, "", "float32[8, 4]", 128}, {1, 2, "", "float32[8, 2]", 64}, {0, 2, "", "float32[8, 4]", 128}});
  plan.cut = {{0, 1, 1}, {0, 1}};
  plan.costs = {.link_bytes_per_ms = 1000, .recompute = false, .memory_cap = 10000, .parameter_copies = 4};
  return plan;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_after(const std::string& from, const std::string& to) {
  const std::string text = replaced(plan_text(small_plan()), from, to);
  return config_error([&] { read_plan(text, "plan.json"); });
}

TEST(File, is_what_a_person_would_read_and_comes_back_the_same) {
  const Plan plan = small_plan();
  const std::string text = plan_text(plan);
  EXPECT_THAT(text, HasSubstr("\"stages\": [\n    {\"device\":0,\"layers\":[\"stem\"]},\n"
                              "    {\"device\":1,\"layers\":[\"body\",\"head\"]}\n  ],\n"));
  const Plan again = read_plan(text, "x");
  EXPECT_EQ(plan_text(again), text);
  EXPECT_EQ(again.cut.stage_of, plan.cut.stage_of);
  EXPECT_EQ(again.cut.device_of, plan.cut.device_of);
}

TEST(File, every_seeded_cut_comes_back_the_same) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Plan plan;
    plan.graph = testing::some_graph(seed, 9);
    plan.costs = testing::some_costs(seed);
    plan.costs.memory_cap = 0;
    plan.cut = cut_mixed(plan.graph, 3, plan.costs, {.seed = seed});
    const Plan again = read_plan(plan_text(plan), "x");
    EXPECT_EQ(again.cut.stage_of, plan.cut.stage_of);
    EXPECT_DOUBLE_EQ(cost_of(again.graph, again.cut, again.costs).slowest_ms,
                     cost_of(plan.graph, plan.cut, plan.costs).slowest_ms);
    check_plan_is_for(again, plan.graph);
  }
}

TEST(File, a_person_may_move_a_layer) {
  const std::string text = replaced(plan_text(small_plan()), R"(["stem"]},
    {"device":1,"layers":["body","head"])",
                                    R"(["body","stem"]},
    {"device":1,"layers":["head"])");
  EXPECT_EQ(read_plan(text, "x").cut.stage_of, (std::vector<size_t>{0, 0, 1}));
}

TEST(File, what_is_wrong_is_said_in_one_line_that_begins_with_the_file) {
  EXPECT_EQ(error_after("[\"body\",\"head\"]", "[\"body\"]"), "plan.json: layer head is in no stage");
  EXPECT_EQ(error_after("[\"body\",\"head\"]", "[\"body\",\"head\",\"stem\"]"),
            "plan.json: layer stem is in stage 0 and in stage 1; expected one of them");
  EXPECT_EQ(error_after("[\"body\",\"head\"]", "[\"body\",\"head\",\"body\"]"),
            "plan.json: layer body is twice in stage 1");
  EXPECT_EQ(error_after("[\"body\",\"head\"]", "[\"bodi\",\"head\"]"),
            "plan.json: stage 1: there is no layer bodi; did you mean body?");
  EXPECT_EQ(error_after("[\"stem\"]", "[]"), "plan.json: stage 0 is empty; expected at least one layer");
  EXPECT_EQ(error_after("\"device\":0,\"layers\":[\"stem\"]",
                        "\"device\":0,\"layers\":[\"head\"]},{\"device\":0,\"layers\":[\"stem\"]},"
                        "{\"device\":0,\"layers\":[\"stem\"]"),
            "plan.json: 4 stages for 3 layers; expected no more stages than layers");
  EXPECT_EQ(error_after("[\"stem\"]},\n    {\"device\":1,\"layers\":[\"body\",\"head\"]",
                        "[\"stem\",\"head\"]},\n    {\"device\":1,\"layers\":[\"body\"]"),
            "plan.json: layer head of stage 0 needs body of stage 1; expected an earlier or the same stage");
  EXPECT_EQ(error_after("\"device\":1", "\"device\":2"), "plan.json: stage 1: device 2 of 2; expected 0 to 1");
  EXPECT_EQ(error_after("\"device\":1", "\"device\":0"), "plan.json: device 1 of 2 has no stage");
  EXPECT_EQ(error_after("\"memory_cap_bytes\": 10000", "\"memory_cap_bytes\": 3000"),
            "plan.json: stage 0 needs 3.125 KiB on device 0, over the memory cap of 2.93 KiB");
  EXPECT_EQ(error_after("\"recompute\"", "\"recomputed\""),
            "plan.json: the file: the key \"recomputed\" is unknown; did you mean recompute?");
  EXPECT_EQ(error_after("  \"recompute\": false,\n", ""), "plan.json: the file: the key \"recompute\" is missing");
  EXPECT_EQ(error_after("\"devices\": 2", "\"devices\": -2"),
            "plan.json: the file: \"devices\" is -2; expected a whole number from 0 to 1125899906842624");
  EXPECT_EQ(error_after("\"devices\": 2", "\"devices\": 2, \"devices\": 2"), "plan.json: it has \"devices\" twice");
  EXPECT_EQ(error_after("\"ddip_partition\": 1", "\"ddip_partition\": 2"),
            "plan.json: its format is number 2; this ddip reads 1");
  EXPECT_EQ(error_after("{\"from\":\"stem\"", "{\"from\":\"stam\""),
            "plan.json: edges[0]: there is no layer stam; did you mean stem?");
  EXPECT_EQ(error_after("\"forward_ms\":1.0", "\"forward_ms\":\"1\""),
            "plan.json: layers[0]: \"forward_ms\" is \"1\"; expected a number of 0 or more");
  EXPECT_THAT(error_after("{\n", "[\n"), HasSubstr("plan.json: it is no JSON, at byte"));
  EXPECT_EQ(config_error([&] { read_plan("[]", "p"); }), "p: the file: expected an object, {…}");
}

TEST(File, no_cut_file_is_read_by_half) {
  const std::string text = plan_text(small_plan());
  for (size_t length = 0; length + 2 < text.size(); ++length)
    EXPECT_THROW(read_plan(std::string_view(text).substr(0, length), "x"), ConfigError) << length;
}

TEST(File, numbers_beyond_any_memory_do_not_slip_under_the_cap) {
  EXPECT_THAT(error_after("\"parameter_bytes\":400", "\"parameter_bytes\":18446744073709551615"),
              HasSubstr("expected a whole number from 0 to"));
  EXPECT_THAT(error_after("\"parameter_copies\": 4.0", "\"parameter_copies\": 1e300"), HasSubstr("expected 0 to 1000"));
  EXPECT_THAT(error_after("\"parameter_copies\": 4.0", "\"parameter_copies\": 1000"), HasSubstr("over the memory cap"));
  EXPECT_THAT(error_after("\"devices\": 2", "\"devices\": 1000000000000000"),
              HasSubstr("device 2 of 1000000000000000"));
}

TEST(File, a_plan_of_another_model_is_refused_with_both_layers_names) {
  const Plan plan = small_plan();
  const auto with = [&](std::vector<Node> nodes, std::vector<Edge> edges) {
    return config_error([&] { check_plan_is_for(plan, Graph(std::move(nodes), std::move(edges))); });
  };
  std::vector<Node> nodes = plan.graph.nodes();
  std::vector<Edge> edges = plan.graph.edges();
  for (Edge& edge : edges)
    if (edge.from == 1) edge.shape = "float32[8, 3]";
  EXPECT_EQ(with(nodes, edges), "between body and head the plan has float32[8, 2] and the model float32[8, 3]");
  EXPECT_EQ(with(nodes, {plan.graph.edges()[0], plan.graph.edges()[2]}),
            "in the plan head needs stem of stem; the model has no such edge");
  nodes[1].name = "bode";
  EXPECT_EQ(with(nodes, plan.graph.edges()), "there is no layer body; did you mean bode?");
  nodes = plan.graph.nodes();
  nodes.push_back({"more"});
  EXPECT_EQ(with(nodes, plan.graph.edges()), "layer more of the model is in no stage of the plan");
  edges = plan.graph.edges();
  edges.push_back({1, 2, "second", "int64[1]", 8});
  EXPECT_EQ(with(plan.graph.nodes(), edges), "in the model head needs second of body; the plan has no such edge");
}

TEST(File, the_world_is_replicas_times_devices) {
  check_world(6, 3, 2);
  EXPECT_EQ(config_error([] { check_world(6, 2, 4); }), "world size 6 ≠ 2 replicas × 4 devices = 8");
}

TEST(Draw, the_table_says_what_the_cut_costs) {
  const std::string text = plan_table(small_plan(), 8);
  EXPECT_EQ(text,
            "stage  device  layers       forward  backward  parameters\n"
            "    0       0  stem        1.000 ms  2.000 ms   400 bytes\n"
            "    1       1  body, head  3.000 ms  4.000 ms   440 bytes\n"
            "\n"
            "device   compute      link     memory\n"
            "0       3.000 ms  0.128 ms  3.125 KiB\n"
            "1       7.000 ms  0.128 ms  2.676 KiB\n"
            "\n"
            "one micro-batch: 10.000 ms on one device, 7.000 ms on the slowest of 2; 128 bytes cross links\n"
            "predicted speed-up 1.43 of 2\n"
            "predicted bubble 28.6% without flush, 32.2% with a flush every 8 micro-batches\n");
}

TEST(Draw, the_picture_has_every_layer_escaped_and_an_arrow_for_every_value_that_leaves_its_stage) {
  Plan plan = small_plan();
  plan.model = "<net> & \"co\"";
  const std::string text = plan_picture(plan);
  EXPECT_THAT(text, ::testing::StartsWith("<svg "));
  EXPECT_THAT(text, EndsWith("</svg>\n"));
  EXPECT_THAT(text, HasSubstr("&lt;net&gt; &amp; &quot;co&quot;"));
  for (const char* layer : {">stem<", ">body<", ">head<"}) EXPECT_THAT(text, HasSubstr(layer));
  size_t arrows = 0;
  for (size_t at = text.find("marker-end"); at != std::string::npos; at = text.find("marker-end", at + 1)) ++arrows;
  EXPECT_EQ(arrows, 1U);  // stem's one value goes to two layers of one stage
}

}  // namespace
}  // namespace ddip::partition
