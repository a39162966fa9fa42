// How ranks find each other before they share anything: a table of short texts that all of them see.
#pragma once

#include <string>

namespace ddip::comm {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for it. Throws TimedOut.
  virtual std::string get(const std::string& key) = 0;
};

}  // namespace ddip::comm
