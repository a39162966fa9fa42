#include "ddip/partition/graph.h"

#include <gtest/gtest.h>

#include <limits>

#include "ddip/base/testing/one_line.h"

namespace ddip::partition {
namespace {

Edge joins(size_t from, size_t to, const std::string& value = "") { return {from, to, value, "", 0}; }

TEST(Graph, order_puts_every_layer_behind_what_it_needs) {
  const Graph graph({{"d"}, {"b"}, {"a"}, {"c"}}, {joins(2, 1), joins(1, 3), joins(3, 0), joins(2, 0)});
  EXPECT_EQ(graph.order(), (std::vector<size_t>{2, 1, 3, 0}));
  EXPECT_FALSE(graph.is_chain());
  EXPECT_EQ(graph.edges().front().value, "b");
  EXPECT_EQ(graph.index_of("c"), 3U);
}

TEST(Graph, a_chain_is_one_whatever_the_order_it_was_given_in) {
  EXPECT_TRUE(Graph({{"only"}}, {}).is_chain());
  EXPECT_TRUE(Graph({{"c"}, {"a"}, {"b"}}, {joins(1, 2), joins(2, 0)}).is_chain());
  EXPECT_FALSE(Graph({{"a"}, {"b"}}, {}).is_chain());
  EXPECT_FALSE(Graph({{"a"}, {"b"}, {"c"}}, {joins(0, 1), joins(0, 2)}).is_chain());
  EXPECT_FALSE(Graph({{"a"}, {"b"}, {"c"}}, {joins(0, 1, "x"), joins(0, 1, "y")}).is_chain());
}

TEST(Graph, what_is_wrong_is_said_in_one_line) {
  const std::vector<Node> ab = {{"alpha"}, {"beta"}};
  EXPECT_EQ(config_error([&] { Graph({}, {}); }), "the model has no layer");
  EXPECT_EQ(config_error([&] { Graph({{""}}, {}); }), "a layer has no name");
  EXPECT_EQ(config_error([&] { Graph({{"a"}, {"a"}}, {}); }), "two layers are called a");
  EXPECT_EQ(config_error([&] { Graph({{"a", -1}}, {}); }), "layer a takes -1 ms; expected a time from 0 to 1e+12");
  EXPECT_EQ(config_error([&] { Graph({{"a", 1, std::numeric_limits<double>::quiet_NaN()}}, {}); }),
            "layer a takes nan ms; expected a time from 0 to 1e+12");
  std::vector<Node> large(255);
  for (size_t i = 0; i < large.size(); ++i)
    large[i] = {.name = std::to_string(i), .activation_bytes = i < 128 ? kMostBytes : 0};
  EXPECT_EQ(config_error([&] { Graph(large, {}); }),
            "255 layers have 1.44115e+17 bytes; expected at most 2.82579e+14 together");
  EXPECT_EQ(config_error([&] { Graph(ab, {joins(0, 2)}); }), "an edge joins layers 0 and 2 of 2");
  EXPECT_EQ(config_error([&] { Graph(ab, {joins(0, 0)}); }), "layer alpha needs its own output");
  EXPECT_EQ(config_error([&] { Graph(ab, {joins(0, 1), joins(0, 1)}); }),
            "the edge of alpha from alpha to beta is there twice");
  EXPECT_EQ(config_error([&] { Graph(ab, {joins(0, 1, "x"), joins(1, 0, "x")}); }),
            "value x comes from both alpha and beta");
  EXPECT_EQ(config_error([&] { Graph(ab, {joins(0, 1)}).index_of("alpa"); }),
            "there is no layer alpa; did you mean alpha?");
  EXPECT_EQ(config_error([&] { Graph({{"a"}, {"b"}, {"c"}}, {{0, 1, "x", "f32[2]", 8}, {0, 2, "x", "f32[3]", 12}}); }),
            "value x of layer a is f32[2] (8 bytes) for b and f32[3] (12 bytes) for c");
}

TEST(Graph, a_circle_is_named_and_only_it) {
  const std::vector<Node> nodes = {{"in"}, {"a"}, {"b"}, {"c"}, {"out"}};
  EXPECT_EQ(config_error([&] { Graph(nodes, {joins(0, 1), joins(1, 2), joins(2, 3), joins(3, 1), joins(3, 4)}); }),
            "the layers wait for each other in a circle: a → b → c → a");
}

}  // namespace
}  // namespace ddip::partition
