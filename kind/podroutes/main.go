// podroutes gives a node one route per other node: its pods' addresses via its
// own. Every two seconds it compares the routes the nodes call for with those
// the kernel has, so whatever took a route away (a node that came back with
// another address, an interface that was disconnected) is repaired the same way.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	credentials = "/var/run/secrets/kubernetes.io/serviceaccount/"
	interval    = 2 * time.Second
	// ours marks the routes made here; no other program's routes are touched.
	ours = "99"
)

type node struct {
	Metadata struct{ Name string }
	Spec     struct{ PodCIDRs []string }
	Status   struct {
		Addresses []struct{ Type, Address string }
	}
}

// wanted maps pod networks of the other nodes to those nodes' addresses.
func wanted(nodes []node, self string) map[string]string {
	routes := map[string]string{}
	for _, n := range nodes {
		if n.Metadata.Name == self {
			continue
		}
		for _, a := range n.Status.Addresses {
			if a.Type != "InternalIP" || net.ParseIP(a.Address).To4() == nil {
				continue
			}
			for _, cidr := range n.Spec.PodCIDRs {
				routes[cidr] = a.Address
			}
			break
		}
	}
	return routes
}

// present parses lines like "10.244.1.0/24 via 172.18.0.3 dev eth0".
func present(table string) map[string]string {
	routes := map[string]string{}
	for _, line := range strings.Split(table, "\n") {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == "via" {
			routes[f[0]] = f[2]
		}
	}
	return routes
}

func ip(args ...string) (string, error) {
	out, err := exec.Command("ip", append([]string{"-4"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func listNodes(client *http.Client) ([]node, error) {
	token, err := os.ReadFile(credentials + "token") // it rotates: read every time
	if err != nil {
		return nil, err
	}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	if endpoint := os.Getenv("CONTROL_PLANE_ENDPOINT"); endpoint != "" {
		host = endpoint
	}
	request, err := http.NewRequest(http.MethodGet, "https://"+host+"/api/v1/nodes?resourceVersion=0", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list nodes: %s", response.Status)
	}
	var list struct{ Items []node }
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return list.Items, nil
}

func repair(client *http.Client, self string) error {
	nodes, err := listNodes(client)
	if err != nil {
		return err
	}
	table, err := ip("route", "show", "proto", ours)
	if err != nil {
		return err
	}
	want, have := wanted(nodes, self), present(table)
	for cidr, via := range want {
		if have[cidr] == via {
			continue
		}
		if _, err := ip("route", "replace", cidr, "via", via, "proto", ours); err != nil {
			return err
		}
		log.Printf("route %s via %s set (was %q)", cidr, via, have[cidr])
	}
	for cidr, via := range have {
		if want[cidr] != "" {
			continue
		}
		if _, err := ip("route", "del", cidr, "proto", ours); err != nil {
			return err
		}
		log.Printf("route %s via %s removed", cidr, via)
	}
	return nil
}

func main() {
	authority, err := os.ReadFile(credentials + "ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	self := os.Getenv("NODE_NAME")
	log.Printf("keeping the pod routes of %s", self)
	for {
		if err := repair(client, self); err != nil {
			log.Print(err)
		}
		time.Sleep(interval)
	}
}
