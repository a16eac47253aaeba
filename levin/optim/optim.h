#pragma once

// All optimizers, schedulers and clipping.
#include "levin/optim/adafactor.h"
#include "levin/optim/adagrad.h"
#include "levin/optim/adam.h"
#include "levin/optim/adam_8bit.h"
#include "levin/optim/averaged_weights.h"
#include "levin/optim/clip.h"
#include "levin/optim/host_step.h"
#include "levin/optim/in_backward.h"
#include "levin/optim/lamb.h"
#include "levin/optim/lion.h"
#include "levin/optim/optimizer.h"
#include "levin/optim/schedulers.h"
#include "levin/optim/sgd.h"
#include "levin/optim/torch/adapter.h"
