// Package images tests the container images that `make images` builds, as users run them: by the commands that
// the documentation of the stock images has, with ours in their place.
//
// Containers have no network, or an internal one that the tests make, on which the test itself is the client.
// Everything is named after the run and gone at its end: containers, images, networks and volumes.
//
// The tests need root (to stop a server with a signal, from outside) and a Docker engine on this machine; no
// registry. What is missing fails the run when CI is set, and skips the tests otherwise.
package images
