// One per group: takes cells from clients, sends them to the agent, gives every rank's ending back exactly once, and
// keeps the journal of all output. Runs on one loop; decides membership with membership/.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::coordinator {

struct Options {
  std::string name;
  std::vector<wire::json> environments;  // per rank; as many as there are ranks
  double start_timeout = 60;             // seconds
  double settle = 10;                    // after one rank failed, how long the others may go on
  double idle = 12 * 3600;               // 0: for ever
  double grace = 0;                      // after an interrupt, seconds until stuck ranks are replaced; 0: never
  pid_t owner = 0;                       // when it dies the group ends; 0: it lives on
  std::string key;
  Fd listener;
  std::filesystem::path journal_folder;
  wire::json facts = wire::json::object();  // shown by info: devices, python, backend, port, …
};

class Coordinator {
 public:
  struct Events {
    std::function<void(wire::Message)> to_agent;
    std::function<wire::json()> describe_agent;
    std::function<void()> on_ready;  // all ranks joined for the first time
    std::function<void(const std::string& why)> on_start_failed;
    std::function<void()> on_stopped;  // every worker is gone; end the process
  };

  Coordinator(net::Loop& loop, Options options, Events events);
  ~Coordinator();

  void start();
  void stop(const std::string& why);
  void on_agent(wire::Message message);

 private:
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace ddip::coordinator
