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
   public:
    size_t index() const { return index_; }  // in nodes()

   private:
    friend class Graph;
    Source(size_t index, std::shared_ptr<const Identity> graph) : index_(index), graph_(std::move(graph)) {}
    size_t index_;
    std::shared_ptr<const Identity> graph_;
  };

  struct Node {
    std::string name;
    std::optional<Part> layer;  // none: an input
    std::vector<size_t> reads;  // earlier nodes, in the order of the layer's arguments
  };

  // A single input is a batch's x; several are the items of x, in their order.
  Source input(std::string name = "input");
  // Whatever a Part can be made of; several readings are its arguments. Its parameters are "name.weight", … in the
  // pipeline's state. Throws ConfigError: a name with a dot, without a letter or there already, nothing to read.
  Source add(std::string name, Part layer, std::vector<Source> reads);

  // Each behind all that it reads.
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<size_t> inputs() const;
  std::vector<size_t> layers() const;
  // The layer that no other one reads. Throws ConfigError: there is none, or several.
  size_t result() const;
  // The last node that reads it; 0: nobody does.
  size_t last_reader(size_t node) const { return last_reader_.at(node); }

  // The model in this process. Throws as run_layers().
  Value run(const Value& x) const;

  // Some layers: `values` has a place for each node, and what comes from elsewhere is there already. `sent`: nodes that
  // other stages will read. Throws ConfigError if a layer changes in place what is sent or what a later layer reads,
  // wherever that is: the result would be another one in every cut. Two values that are one memory, as a view is, can
  // be seen to be so only in one process: run() looks at the whole model.
  void run_layers(const std::vector<size_t>& layers, std::vector<Value>& values,
                  const std::vector<size_t>& sent = {}) const;
  // Puts a batch's x where the inputs are.
  void spread(const Value& x, std::vector<Value>& values) const;

 private:
  Source append(Node node);

  std::shared_ptr<const Identity> identity_ = std::make_shared<Identity>();  // a copy's is the same
  std::vector<Node> nodes_;
  std::vector<size_t> last_reader_;
};

}  // namespace ddip::pipeline
