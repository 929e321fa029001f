// What the two builds of the runtime do differently with memory: memory_watched.cpp looks at every load and store,
// memory_sanitized.cpp leaves that to the sanitizers.
#pragma once

namespace simt {

void begin_launch();
void begin_block();
void align_lanes(unsigned warp);       // all lanes of the warp are at the same place

}  // namespace simt
