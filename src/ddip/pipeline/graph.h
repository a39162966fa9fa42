// A model with branches: named layers, and what each of them reads.
//
//   ddip::pipeline::Graph net;
//   auto x = net.input();
//   auto down = net.add("down", Down(3, 8), {x});
//   auto deep = net.add("deep", Deep(8), {down});
//   net.add("up", Up(8, 3), {deep, down});  // its forward has two arguments
//
// What no other layer reads is the model's result. Stages are made of it by cut() (graph_cut.h) and measured_cut()
// (measured.h), and a skip as from "down" to "up" is an edge between them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddip/pipeline/part.h"

namespace ddip::pipeline {

class Graph {
  struct Identity {};

 public:
  // What a layer may read: an input of the model, or what a layer gives.
  class Source {
   private:
    friend class Graph;
    Source(size_t index, std::shared_ptr<const Identity> node) : index_(index), node_(std::move(node)) {}
    size_t index_;  // in nodes()
    std::shared_ptr<const Identity> node_;
  };

  struct Node {
    std::string name;
    std::optional<Part> layer;  // none: an input
    std::vector<size_t> reads;  // earlier nodes, in the order of the layer's arguments
    std::shared_ptr<const Identity> identity = std::make_shared<Identity>();  // a copied graph's node is the same
  };

  // A single input is a batch's x; several are the items of x, in their order.
  Source input(std::string name = "input");
  // Whatever a Part can be made of; several readings are its arguments. Its parameters are "name.weight", … in the
  // pipeline's state. Throws ConfigError: no name, one with a dot or there already, nothing to read.
  Source add(std::string name, Part layer, std::vector<Source> reads);

  // Each behind all that it reads.
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<size_t> inputs() const;
  std::vector<size_t> layers() const;
  // The layer that no other one reads. Throws ConfigError: there is none, or several.
  size_t result() const;
  // The layers that read it, in their order.
  const std::vector<size_t>& readers(size_t node) const { return readers_.at(node); }

  // The model in this process. Losses of its layers' own are dropped. Throws as run_layers().
  Value run(const Value& x) const;

  // Some layers: `values` has a place for each node, and what comes from elsewhere is there already. Gives losses of
  // the layers' own. Throws ConfigError if a layer changes in place what several layers read, also if it is the last
  // one to read it: in another cut it would not be. (Two values that are one memory, as a view is, can be seen to be so
  // only where both are: run() looks at the whole model.)
  std::vector<at::Tensor> run_layers(const std::vector<size_t>& layers, std::vector<Value>& values) const;
  // Puts a batch's x where the inputs are.
  void spread(const Value& x, std::vector<Value>& values) const;

 private:
  Source append(Node node);

  std::vector<Node> nodes_;
  std::vector<std::vector<size_t>> readers_;
};

}  // namespace ddip::pipeline
