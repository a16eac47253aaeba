#pragma once

/// All transforms of images, per sample and per batch.
#include "levin/data/transforms/auto_augment.h"
#include "levin/data/transforms/batch.h"
#include "levin/data/transforms/blur.h"
#include "levin/data/transforms/color.h"
#include "levin/data/transforms/compose.h"
#include "levin/data/transforms/crops.h"
#include "levin/data/transforms/erasing.h"
#include "levin/data/transforms/flips.h"
#include "levin/data/transforms/geometry.h"
#include "levin/data/transforms/normalize.h"
#include "levin/data/transforms/resize.h"
#include "levin/data/transforms/tone.h"
#include "levin/data/transforms/transform.h"
