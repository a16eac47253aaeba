// Gives the precompiled header an object to belong to.
