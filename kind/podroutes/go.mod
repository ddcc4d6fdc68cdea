module local/podroutes

go 1.26
