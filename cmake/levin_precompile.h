#pragma once
// What levin_precompile(target) compiles once for a program that uses Levin.
#include <string>
#include <vector>

#include <levin/levin.h>
#include <torch/torch.h>

#include "levin_instances.h"
