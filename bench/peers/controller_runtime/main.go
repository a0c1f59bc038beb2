// A webhook as most are built: controller-runtime decodes the pod, the gate is added, and the
// answer is the difference of the two.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	annotation = "delay"
	gate       = "holdfast.dev/delay"
)

type handler struct {
	decoder admission.Decoder
	mutates bool
}

func (h *handler) Handle(_ context.Context, request admission.Request) admission.Response {
	var pod corev1.Pod
	if err := h.decoder.Decode(request, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	seconds, err := strconv.ParseInt(pod.Annotations[annotation], 10, 64)
	if err != nil {
		return admission.Denied(fmt.Sprintf("annotation %s: %v", annotation, err))
	}
	if !h.mutates || seconds <= 0 {
		return admission.Allowed("")
	}
	pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	changed, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

func run(port int, certificate string, key string) error {
	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	decoder := admission.NewDecoder(scheme)
	server := webhook.NewServer(webhook.Options{
		Host:     "127.0.0.1",
		Port:     port,
		CertDir:  filepath.Dir(certificate),
		CertName: filepath.Base(certificate),
		KeyName:  filepath.Base(key),
		// HTTP/1.1, as kubebuilder's scaffold has it, and as a Service's webhook is called anyway
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
	})
	server.Register("/mutate", &webhook.Admission{Handler: &handler{decoder, true}})
	server.Register("/validate", &webhook.Admission{Handler: &handler{decoder, false}})
	return server.Start(ctrl.SetupSignalHandler())
}

func main() {
	port := flag.Int("port", 9443, "where to listen")
	certificate := flag.String("cert", "tls.crt", "the certificate")
	key := flag.String("key", "tls.key", "its key, in the same folder")
	flag.Parse()
	if err := run(*port, *certificate, *key); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
